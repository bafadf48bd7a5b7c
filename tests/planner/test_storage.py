"""Where parameters may be stored: a `zero=` pin takes no use of a parameter away."""

from __future__ import annotations

import pytest

from meshwright.capture.program import TensorType, Value
from meshwright.cluster import load_cluster
from meshwright.layout import Layout
from meshwright.pins.pins import Pins
from meshwright.planner.space.storage import parameter_options
from meshwright.price.parameter import Setting


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("compute", ["[R, I]", "[R, R]", "[R, S(0)]"])
@pytest.mark.parametrize("shape", [(8192,), (128256, 8192), (8, 7)])
def test_a_zero_pin_leaves_every_use_of_a_parameter(zero: int, compute: str, shape: tuple[int, ...]) -> None:
    """On 48 x 8 devices a norm of 8,192 is not cut by all 384; it is used whole, and stored by 48 of them."""
    mesh = load_cluster("dgx-h100:48").mesh((48, 8))
    wish = Layout.parse(compute)
    value = Value("weight", TensorType(shape, "float32"), grad=True)
    found = parameter_options(value, "weight", [wish], mesh, Pins(zero=zero), Setting(microbatches=2))
    assert found, "no use is left"
    for option in found:
        storage = Layout.parse(option.storage)
        assert option.compute == str(wish)
        assert storage.is_plain(shape, mesh.sizes)
        if shape[0] >= 48 and not wish[1].is_shard:
            assert storage.shard_factor(mesh.sizes) >= 48, "ZeRO stores a part on each device"
