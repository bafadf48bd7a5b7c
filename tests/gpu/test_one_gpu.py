"""One rank on a GPU computes what the plain model computes there; says so when there is no GPU."""

from __future__ import annotations

import pytest
import torch
from small_models import NAMES, small_model

from meshwright.capture import capture
from meshwright.cluster import load_cluster
from meshwright.planner.plan import make_plan
from meshwright.runtime.trainer import parallelize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


@pytest.mark.parametrize("pins", [(), ("dp=1",), ("tp=1",), ("dp=1", "zero=3")])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_equal_eager_on_the_gpu(name: str, pins: tuple[str, ...]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, batch = small_model(name)
    plan = make_plan(capture(model, batch), load_cluster("local:1"), pins=pins)
    trainer = parallelize(model, plan, copy=True)
    loss = trainer.step(batch, global_batch=True)
    assert loss.is_cuda
    model.cuda()
    true = model(**{key: tensor.cuda() for key, tensor in batch.items()})
    true.backward()
    assert loss.item() == pytest.approx(true.item(), rel=1e-6)
    largest = max(parameter.grad.abs().max() for parameter in model.parameters())
    for key, parameter in trainer.named_parameters():
        gradient = dict(model.named_parameters())[key].grad
        error = (parameter.grad.full_tensor() - gradient).abs().max()
        assert error <= max(1e-5 * gradient.abs().max(), 1e-7 * largest), key
