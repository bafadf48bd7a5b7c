"""What is in memory whatever is kept: parameters, gradients, optimizer, batch; and the seconds of its step."""

from __future__ import annotations

from meshwright.capture.optimizer import STATES
from meshwright.capture.program import ITEM_BYTES, Parameter, Program
from meshwright.cluster import Device
from meshwright.generate.program import sharded_prologue
from meshwright.layout import Layout
from meshwright.plan import Plan
from meshwright.price.parameter import Setting, local_bytes, update_s
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


def optimizer_s(program: Program, plan: Plan, device: Device) -> tuple[float, float]:
    """(host, device) seconds of a fused optimizer's step over a trainer's parameters, as plans of several devices count
    it too."""
    states, trained = STATES[plan.optimizer], [parameter for parameter in program.parameters if parameter.trainable]
    updates = [
        update_s(device, plan.parameters[parameter.name].dtype, _stored_bytes(plan, parameter), states)
        for parameter in trained
    ]
    return sum(host_s for host_s, _ in updates), sum(device_s for _, device_s in updates)


def _stored_bytes(plan: Plan, parameter: Parameter) -> int:
    entry = plan.parameters[parameter.name]
    return local_bytes(parameter.type.sizes, ITEM_BYTES[entry.dtype], Layout.parse(entry.storage), plan.mesh)
