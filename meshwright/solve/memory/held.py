"""What is in memory whatever is kept: parameters, gradients, optimizer, batch; and the seconds of its step."""

from __future__ import annotations

from meshwright.capture.program import ITEM_BYTES, Parameter, Program
from meshwright.cluster import Device
from meshwright.cluster.profile_load import profile_of
from meshwright.generate.program import sharded_prologue
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.price.parameter import STATES, Setting, local_bytes
from meshwright.profile.operands import type_bytes


def static_bytes(program: Program, plan: Plan) -> tuple[int, tuple[int, ...]]:
    """(bytes that are there all the time, per instance the gradients that its backward makes first)."""
    setting = Setting(plan.optimizer, plan.precision)
    static = 0
    gradients = [0] * len(program.segments)
    for parameter in program.parameters:
        stored = _stored_bytes(plan, parameter)
        static += stored * (1 + (STATES[plan.optimizer] if parameter.trainable else 0))
        if setting.storage_dtype(parameter.type.dtype) != parameter.type.dtype:
            static += stored * parameter.type.itemsize // ITEM_BYTES[plan.parameters[parameter.name].dtype]
        if parameter.trainable:
            gradients[program.uses_of(parameter.name)[-1]] += stored
    static += sum(type_bytes(buffer.type) for buffer in program.buffers)
    prologue = sharded_prologue(program, plan)
    values = prologue.values()
    static += sum(type_bytes(values[name].type) for name in dict.fromkeys(prologue.outputs))
    for name, layout in plan.stages[0].inputs.items():
        entry = plan.inputs[name]
        static += local_bytes(entry.shape, ITEM_BYTES[entry.dtype], Layout.parse(layout), plan.mesh)
    return static, tuple(gradients)


def optimizer_s(program: Program, plan: Plan, device: Device) -> float:
    """The step of a fused optimizer, as the device's profile has it; by the bytes it moves where that has none."""
    trained = [parameter for parameter in program.parameters if parameter.trainable]
    sizes = [_stored_bytes(plan, parameter) for parameter in trained]
    profile, name = profile_of(device), f"{plan.optimizer}.fused"
    if trained and device.kind == "cuda" and name in profile.tables.optimizers:
        dtype = plan.parameters[trained[0].name].dtype
        return profile.optimizer(name, dtype, len(sizes), sum(sizes))[1]
    rate = device.memory_bandwidth * device.achievable_fraction("memory")
    return sum(sizes) * (3 + 2 * STATES[plan.optimizer]) / rate


def _stored_bytes(plan: Plan, parameter: Parameter) -> int:
    entry = plan.parameters[parameter.name]
    return local_bytes(parameter.type.sizes, ITEM_BYTES[entry.dtype], Layout.parse(entry.storage), plan.mesh)
