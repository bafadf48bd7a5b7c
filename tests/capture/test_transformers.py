"""Models of `transformers` are captured on the path that eager takes."""

from __future__ import annotations

import pytest
from equality import assert_runs_like
from references import real_batch

from meshwright.capture import Program, capture
from meshwright.capture.experts import MIX
from meshwright.models.reference import parse_reference

TEXT = "hidden_size=32&num_attention_heads=4&num_hidden_layers=3&vocab_size=64&seq=16"
MODELS = {
    "llama": f"{TEXT}&intermediate_size=64&num_key_value_heads=2",
    "mixtral": f"{TEXT}&intermediate_size=64&num_key_value_heads=2&num_local_experts=4",
    "bloom": f"{TEXT}&hidden_dropout=0&attention_dropout=0",
    "opt": f"{TEXT}&ffn_dim=64&word_embed_proj_dim=32&dropout=0&pad_token_id=0",
    "t5": "d_model=32&d_kv=8&d_ff=64&num_layers=3&num_heads=4&vocab_size=64&seq=16&dropout_rate=0",
    "mamba": "hidden_size=32&num_hidden_layers=3&vocab_size=64&seq=12&time_step_rank=4",
}


def captured(name: str) -> Program:
    reference = parse_reference(f"hf:{name}?{MODELS[name]}")
    model, batch = reference.build(), real_batch(reference.shapes(3))
    program = capture(model, batch)
    assert_runs_like(program, model, batch, tolerance=2e-6)
    return program


def targets(program: Program) -> set[str]:
    return {op.target for graph in program.graphs for op in graph.ops}


def test_causal_attention_stays_causal_and_grouped() -> None:
    program = captured("llama")
    attention = [op for g in program.graphs for op in g.ops if "scaled_dot_product_attention" in op.target]
    assert len(attention) == 1
    assert attention[0].args[3:6] == (None, 0.0, True)
    assert dict(attention[0].kwargs)["enable_gqa"] is True
    assert len(program.graphs) == 3
    assert [buffer.name for buffer in program.prologue.buffers] == ["model.rotary_emb.inv_freq"]


def test_experts_stay_grouped_matmuls() -> None:
    program = captured("mixtral")
    mixtures = [op for graph in program.graphs for op in graph.ops if op.target == MIX]
    assert len(mixtures) == 1
    assert str((mixtures[0].args, mixtures[0].kwargs)).count("meshwright.grouped_mm.default") == 2


def test_a_backward_of_its_own_is_kept() -> None:
    assert "transformers.models.bloom.modeling_bloom:GeLUFunction.apply" in targets(captured("bloom"))


def test_layers_that_are_dropped_with_probability_zero_are_there() -> None:
    program = captured("opt")
    assert not program.warnings
    assert not program.answers


def test_a_shared_position_bias_is_carried() -> None:
    """The first layer of each stack makes its bias; the others are alike."""
    program = captured("t5")
    for stack, carried in (("encoder", 1), ("decoder", 2)):
        layers = [s for s in program.segments if s.name.startswith((f"{stack}.block.1", f"{stack}.block.2"))]
        assert len(layers) == 2
        assert layers[0].graph == layers[1].graph
        assert len(set(layers[0].inputs) & set(layers[1].inputs)) == carried


@pytest.mark.full
def test_a_scan_is_one_op() -> None:
    program = captured("mamba")
    assert "transformers.models.mamba.modeling_mamba:mamba_selective_scan" in targets(program)
    assert sum(1 for _ in program.ops()) < 150
