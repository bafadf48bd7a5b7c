"""What meshwright relies on from torch's private side, each in one fact: a torch that breaks one fails here first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import forked
from torch import Tensor, nn
from torch.distributed.tensor import Shard
from torch.export import Dim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from meshwright import torch_compat


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.ones(4, 6),), dynamic_shapes=({0: Dim.AUTO},), strict=False)


class Calls(torch_compat.TorchDispatchMode):
    """Names of the ops that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Marked(Tensor):
    """A subclass that functions of torch hand on."""


def test_subclasses_are_plain_tensors_for_a_while() -> None:
    marked = torch.ones(2).as_subclass(Marked)
    assert type(marked + 1) is Marked
    with torch_compat.as_plain_tensors():
        assert type(marked + 1) is Tensor
        assert type(marked.as_subclass(Tensor)) is Tensor


def test_code_asks_here_whether_it_is_compiled() -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            told.update({name: vars(holder)[name]() for holder, name in torch_compat.compile_questions()})
            return x + 1

    told: dict[str, bool] = {}
    Asking()(torch.ones(2))
    assert not any(told.values())
    torch.export.export(Asking(), (torch.ones(2),), strict=False)
    assert told["is_compiling"]
    assert told["is_exporting"]


def test_dynamo_keeps_the_questions_themselves() -> None:
    """Its tables are made before a capture replaces them."""
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable, tracing_state_functions

    asked = torch_compat.compile_questions()
    for table in (tracing_state_functions, TorchInGraphFunctionVariable._get_handlers):
        assert table.cache_info().currsize == 1
        assert vars(torch.compiler)["is_dynamo_compiling"] in table()
    assert (torch.compiler, "is_dynamo_compiling") in asked


def test_fakes_have_types_and_no_storage() -> None:
    mode = torch_compat.fake_mode()
    assert isinstance(mode, torch_compat.FakeMode)
    tensor = torch_compat.fake_tensor((1 << 20, 1 << 20), torch.float32, mode)
    assert torch_compat.is_fake(tensor)
    assert not torch_compat.is_fake(torch.ones(1))
    assert (tensor @ tensor).shape == (1 << 20, 1 << 20)


def test_symbols_have_a_value_at_each_batch() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x]).reshape(-1)

    size = next(n for n in reversed(exported(Doubled()).graph.nodes) if n.op == "call_function").meta["val"].shape[0]
    assert [torch_compat.symbolic_value(size, batch) for batch in (2, 7)] == [24, 84]
    assert not torch_compat.has_unbacked_symbol(size)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_fake_parameter_is_what_torch_makes(requires_grad: bool) -> None:
    mode = torch_compat.fake_mode()
    made = torch_compat.fake_parameter((4, 3), torch.bfloat16, mode, requires_grad)
    known = nn.Parameter(torch_compat.fake_tensor((4, 3), torch.bfloat16, mode), requires_grad=requires_grad)
    assert isinstance(made, nn.Parameter)
    assert made.requires_grad is known.requires_grad is requires_grad
    assert made.is_leaf
    assert vars(made).keys() == vars(known).keys()
    module = nn.Module()
    module.weight = made
    assert dict(module.named_parameters()) == {"weight": made}


def test_a_fake_like_another_has_its_own_sizes() -> None:
    one = torch_compat.fake_tensor((2, 3), torch.bfloat16, torch_compat.fake_mode())
    other = torch_compat.fake_like(one, [4, 5], [1, 4])
    assert torch_compat.is_fake(other)
    assert (other.shape, other.stride(), other.dtype) == ((4, 5), (1, 4), torch.bfloat16)


def test_numbers_from_the_data_are_unbacked() -> None:
    class Item(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sum().long().item()

    values = [node.meta.get("val") for node in exported(Item()).graph.nodes]
    symbols = [value for value in values if isinstance(value, torch.SymInt)]
    assert any(torch_compat.has_unbacked_symbol(symbol) for symbol in symbols)


def test_branches_on_values_raise_what_is_caught() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(torch_compat.DATA_DEPENDENT):
        exported(Branch())


def test_views_are_known_by_schema_and_by_storage() -> None:
    aten = torch.ops.aten
    assert torch_compat.returns_view(aten.transpose.int)
    assert torch_compat.returns_view(aten.reshape.default)
    assert not torch_compat.returns_view(aten.add_.Tensor)
    assert not torch_compat.returns_view(aten.linear.default)
    x = torch_compat.fake_tensor((4, 6), torch.float32, torch_compat.fake_mode())
    assert torch_compat.shares_storage(x, x.t())
    assert not torch_compat.shares_storage(x, x.t().contiguous())


def test_what_an_op_writes_and_takes_is_known_by_schema() -> None:
    aten = torch.ops.aten
    assert torch_compat.writes_argument(aten.add_.Tensor)
    assert not torch_compat.writes_argument(aten.add.Tensor)
    assert torch_compat.argument_position(aten._scaled_dot_product_flash_attention.default, "dropout_p") == 3
    assert torch_compat.argument_position(aten.add.Tensor, "dropout_p") is None


def test_captured_views_share_storage() -> None:
    class View(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1)[2:] + 1

    nodes = [node for node in exported(View()).graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    x, view, part, total = (node.meta["val"] for node in nodes)
    assert torch_compat.shares_storage(x, view)
    assert torch_compat.shares_storage(x, part)
    assert not torch_compat.shares_storage(x, total)


def test_joint_graphs_hold_the_gradient() -> None:
    mode = torch_compat.fake_mode()

    def joint(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y = x.sin()
        return [y, *torch.autograd.grad(y, [x], torch.ones_like(y))]

    traced = torch_compat.trace_joint(joint, [torch_compat.fake_tensor((3,), torch.float32, mode)], mode)
    assert "aten.cos.default" in {str(node.target) for node in traced.graph.nodes}


def test_joint_graphs_have_code_when_they_are_run() -> None:
    mode = torch_compat.fake_mode()
    given = torch_compat.fake_tensor((3,), torch.float32, mode)
    traced = torch_compat.trace_joint(lambda x: [x * 2], [given], mode)
    node = next(node for node in traced.graph.nodes if node.op == "call_function")
    node.args = (node.args[0], 5)
    traced.recompile()
    assert torch.equal(traced(torch.ones(3))[0], torch.full((3,), 5.0))


def test_fake_kernels_may_use_composite_operators() -> None:
    with torch_compat.symbolic_kernels():
        assert torch.ones(2).sum() == 2


def test_operators_are_recorded_with_what_they_write() -> None:
    calls = []
    with torch_compat.RecordingMode(lambda *call: calls.append(call)), torch.device("meta"):
        weight = torch.empty(2, 3)
        weight[1].fill_(1)
    names = [str(call[0]) for call in calls if "detach" not in str(call[0])]
    assert names == ["aten.empty.memory_format", "aten.select.int", "aten.fill_.Scalar"]
    fill = calls[-1]
    (written,) = torch_compat.written_arguments(fill[0], fill[1], fill[2])
    assert torch_compat.storage_key(written) == torch_compat.storage_key(weight)
    assert torch_compat.storage_key(weight) != torch_compat.storage_key(torch.empty(2, device="meta"))


def over_connections_of_their_own(rank: int) -> tuple[bytes, int, bool]:
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.TCPStore("127.0.0.1", 0, 1, True))
    first, second = torch_compat.own_store("a"), torch_compat.own_store("a")
    first.set("key", "value")
    return second.get("key"), torch_compat.own_store("b").add("n", 2), first is second


def test_the_jobs_store_is_had_over_a_connection_of_its_own() -> None:
    assert forked(1, over_connections_of_their_own) == [(b"value", 2, False)]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_a_compiled_graph_empties_the_list_it_is_given() -> None:
    mode = torch_compat.fake_mode()
    fakes = [torch_compat.fake_tensor((4, 6), torch.float32, mode) for _ in range(2)]
    traced = torch_compat.trace_joint(lambda x, y: [x.t() * 2 + y.t(), x.sin()], fakes, mode)
    run = torch_compat.compile_boxed(traced)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    box = [x, y]
    first, second = run(box)
    assert not box
    torch.testing.assert_close((first, second), (x.t() * 2 + y.t(), x.sin()))
    assert first.stride() == (x.t() * 2 + y.t()).stride()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_our_own_operators_are_fused_when_compiled() -> None:
    from meshwright.capture.counter import dropout, keys

    mode = torch_compat.fake_mode()
    fakes = [torch_compat.fake_tensor((4, 6), torch.float32, mode), torch_compat.fake_tensor((5,), torch.int64, mode)]
    traced = torch_compat.trace_joint(lambda x, key: [dropout(x * 2, key, 0.5)], fakes, mode)
    assert any("meshwright" in str(node.target) for node in traced.graph.nodes)
    run = torch_compat.compile_boxed(traced)
    x, key = torch.randn(4, 6), keys(1, torch.device("cpu"))[0]
    with Calls() as calls:
        (found,) = run([x, key])
    assert not [name for name in calls.seen if "meshwright" in name]
    torch.testing.assert_close(found, dropout(x * 2, key, 0.5))


def test_operators_name_their_arguments() -> None:
    assert torch_compat.argument_names(torch.ops.aten.softmax.int) == ("self", "dim", "dtype")
    assert torch_compat.argument_names(len) == ()


def test_a_failed_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(torch_compat.DATA_DEPENDENT), torch_compat.without_reports():
        exported(Asks())
    assert capfd.readouterr().err == ""


def test_recurrent_layers_are_traced_to_ops_that_run() -> None:
    torch.manual_seed(0)
    weights = [p.detach() for p in nn.LSTM(3, 4, batch_first=True).parameters()]

    def joint(x: Tensor, *given: Tensor) -> list[Tensor]:
        held = [tensor.detach().requires_grad_() for tensor in given]
        state = [torch.zeros(1, 2, 4)] * 2
        out = torch.ops.aten.lstm.input(x, state, held, True, 1, 0.0, True, False, True)[0]
        return [out, *torch.autograd.grad(out.square().sum(), held)]

    mode, inputs = torch_compat.fake_mode(), [torch.randn(2, 5, 3), *weights]
    fakes = [torch_compat.fake_tensor(tuple(t.shape), t.dtype, mode) for t in inputs]
    traced = torch_compat.functional(torch_compat.trace_joint(joint, fakes, mode), fakes, mode)
    for found, true in zip(traced(*inputs), joint(*inputs), strict=True):
        torch.testing.assert_close(found, true)


def test_dtensor_says_where_results_are_and_raises_where_it_would_communicate() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    mesh = torch_compat.bare_mesh(2)
    rows = torch_compat.as_dtensor(torch.rand(2, 6, requires_grad=True), mesh, Shard(0))
    with torch_compat.without_onednn():
        result = torch.ops.aten.cosine_similarity.default(rows.unsqueeze(1), rows.unsqueeze(1), 2)
    assert torch_compat.placement_kind(result.placements[0]) == ("shard", 0)
    (gradient,) = torch.autograd.grad(result, rows, torch_compat.as_dtensor(torch.ones(2, 1), mesh, Shard(0)))
    assert gradient.placements == (Shard(0),)
    total = rows.sum(0)
    assert torch_compat.placement_kind(total.placements[0]) == ("sum", 0)
    assert torch_compat.placement_kind(Partial("max"))[0] not in ("sum", "shard", "replicate")
    assert torch_compat.placement_kind(Replicate()) == ("replicate", 0)
    with pytest.raises((AttributeError, RuntimeError, ValueError, AssertionError)):
        total.exp()
    with pytest.raises(NotImplementedError):
        torch.ops.aten._trilinear.default(rows, rows, rows, [0], [0], [0], [1])


def test_what_users_register_with_dtensor_is_found() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.experimental import register_sharding

    assert torch_compat.dtensor_is_loaded()
    torch.library.custom_op("mw_compat::twice", lambda x: 2 * x, mutates_args=(), schema="(Tensor x) -> Tensor")

    def sharding(x: object) -> list[tuple[list[Shard], list[Shard]]]:
        return [([Shard(0)], [Shard(0)])]

    register_sharding(torch.ops.mw_compat.twice.default)(sharding)
    assert torch_compat.registered_sharding(torch.ops.mw_compat.twice.default) is sharding
    assert torch_compat.registered_sharding(torch.ops.aten.mm.default) is None
    spec = torch_compat.tensor_spec(torch.rand(4, 6), torch_compat.bare_mesh(2))
    assert (spec.ndim, tuple(spec.shape)) == (2, (4, 6))


def test_operators_say_how_many_tensors_they_take_and_make() -> None:
    aten = torch.ops.aten
    assert torch_compat.tensor_counts(aten.linear.default) == (2, 3, 1)
    assert torch_compat.tensor_counts(aten.topk.default) == (1, 1, 2)
    assert torch_compat.tensor_counts(aten.split.Tensor) == (1, 1, None)
    assert torch_compat.tensor_counts(aten.cat.default) is None
    assert torch_compat.tensor_counts(len) is None


def test_a_dtensor_around_other_memory_is_placed_alike() -> None:
    like = torch_compat.as_dtensor(torch.zeros(2, 3), torch_compat.bare_mesh(2), Shard(0))
    local = torch.ones(2, 3)
    made = torch_compat.dtensor_like(local, like)
    assert (made.shape, made.placements, made.device_mesh) == (like.shape, like.placements, like.device_mesh)
    assert made.to_local().data_ptr() == local.data_ptr()
    assert torch_compat.local_tensor(made) is local


def test_hooks_of_others_around_a_step_are_seen() -> None:
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)])
    assert not torch_compat.has_step_hooks(optimizer)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert torch_compat.has_step_hooks(optimizer)
    assert not torch_compat.has_step_hooks(optimizer, ours=1)
    handle.remove()
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    assert torch_compat.has_step_hooks(optimizer, ours=1), "of every optimizer's steps"
    handle.remove()


def test_writes_through_views_are_seen() -> None:
    whole = torch.zeros(4)
    before = torch_compat.writes_seen(whole)
    whole.detach()[1:].add_(1)
    assert torch_compat.writes_seen(whole) > before


def test_users_of_memory_are_counted() -> None:
    whole = torch.zeros(4)
    alone = torch_compat.storage_users(whole)
    view = whole[1:]
    assert torch_compat.storage_users(whole) == alone + 1
    del view
    assert torch_compat.storage_users(whole) == alone


def test_hooks_and_buffers_of_modules_are_where_we_look() -> None:
    module = torch.nn.BatchNorm1d(2)
    assert set(torch_compat.own_buffers(module)) == {"running_mean", "running_var", "num_batches_tracked"}
    assert not torch_compat.backward_hooks(module)
    assert not any(torch_compat.forward_hooks(module))
    assert not torch_compat.gradient_hooks(module.weight)
    module.register_forward_pre_hook(lambda *_: None)
    module.register_forward_hook(lambda *_: None)
    assert all(torch_compat.forward_hooks(module))
    module.register_full_backward_hook(lambda *_: None)
    assert torch_compat.backward_hooks(module)
    assert len(torch_compat.module_hooks(module)) == 3
    module.weight.register_hook(lambda gradient: gradient)
    module.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    assert torch_compat.gradient_hooks(module.weight)
    assert torch_compat.gradient_hooks(module.bias)


def test_norms_of_several_tensors() -> None:
    tensors = [torch.randn(3, 4), torch.randn(7), torch.zeros(2)]
    assert torch.allclose(torch.stack(torch_compat.norms_of(tensors)), torch.stack([one.norm() for one in tensors]))


def test_hooks_on_all_modules_are_where_we_look() -> None:
    registers = torch.nn.modules.module
    forward = registers.register_module_forward_hook, registers.register_module_forward_pre_hook
    backward = registers.register_module_full_backward_hook, registers.register_module_full_backward_pre_hook
    for register in (*forward, *backward):
        handle = register(lambda *_: None)
        try:
            assert list(map(len, torch_compat.global_hooks())) == [register in forward, register in backward]
        finally:
            handle.remove()
    assert torch_compat.global_hooks() == ((), ())


def test_ops_that_write_have_functional_forms() -> None:
    aten = torch.ops.aten
    found = torch_compat.functional_overload
    assert found(aten.pow_.Scalar) is aten.pow.Tensor_Scalar
    assert found(aten.add_.Tensor) is aten.add.Tensor
    assert found(aten.div.out) is aten.div.Tensor
    assert found(aten.sort.values) is aten.sort.default
    assert found(aten.normal_.default) is None
    assert torch_compat.written_names(aten.sort.values) == ("values", "indices")
    assert torch_compat.written_names(aten.pow_.Scalar) == ("self",)
    assert torch_compat.written_names(aten.add.Tensor) == ()


@pytest.mark.filterwarnings("ignore::UserWarning")  # that nothing is distributed
def test_where_dcp_finds_a_piece_of_a_tensor(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, save

    save({"a": torch.ones(3)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    (held,) = FileSystemReader(tmp_path).read_metadata().storage_data.values()
    assert torch_compat.storage_place(held.relative_path, held.offset, held.length) == held


@torch.library.custom_op("contract::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_modules_that_define_ops_are_found() -> None:
    assert __name__ in torch_compat.modules_with_ops()


def test_the_allocator_takes_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in torch_compat.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert torch_compat.expandable_segments()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert not torch_compat.expandable_segments()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_traced_attention_on_a_cpu_keeps_what_the_kernel_keeps(dtype: torch.dtype) -> None:
    """torch 2.11's fake kernel says float32 of doubles too; planned bytes would be short."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def run(q: Tensor) -> list[Tensor]:
        return list(attention(q, q, q))

    real = run(torch.randn(2, 3, 4, 8, dtype=dtype))
    mode = torch_compat.fake_mode()
    traced = torch_compat.trace_joint(run, [torch_compat.fake_tensor((2, 3, 4, 8), dtype, mode)], mode)
    call = next(node for node in traced.graph.nodes if node.target is attention)
    assert [value.dtype for value in call.meta["val"]] == [value.dtype for value in real]
    call.meta["val"] = (call.meta["val"][0], call.meta["val"][1].float())  # as torch 2.11 has it
    for node in torch_compat.with_real_statistics(traced).graph.nodes:
        parts = node.meta.get("val", ())
        for found in parts if isinstance(parts, tuple) else ():
            assert found.dtype == dtype
    part = next(node for node in traced.graph.nodes if node.args[1:] == (1,))
    assert part.meta["val"].dtype == dtype


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
def test_it_is_known_whether_a_profiler_records() -> None:
    assert not torch_compat.profiler_records()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert torch_compat.profiler_records()
    assert not torch_compat.profiler_records()
