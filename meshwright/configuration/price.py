"""What a given configuration costs, without search: `mw.price`."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.cluster import Cluster, load_cluster
from meshwright.configuration.configuration import Configuration, configured
from meshwright.configuration.replicas import predicted, steps_of
from meshwright.configuration.step import Step
from meshwright.configuration.transformer import Transformer, transformer_of
from meshwright.errors import PlanError, what_is
from meshwright.pins.constraints import GivenPins, pin_texts
from meshwright.plan import Prediction


def price(
    model: str | Transformer,
    cluster: str | Cluster,
    pins: GivenPins = (),
    *,
    global_batch: int | None = None,
) -> Prediction:
    """Seconds and bytes of one training step of a configuration that is given whole.

    model: a reference (`llama3-8b`, `gpt?layers=48&hidden=6144`) of the families gpt, llama and moe, or a Transformer.
    pins: `tp=8`, `pp=4`, `vpp=2`, `cp=2`, `ep=8`, `zero=1`, `sp=on`, `micro_batch=2`, `recompute=full`, ...
    (`meshwright price --help` tells them all), also as Constraints or a dict; dp takes the devices that are left.
    global_batch: sequences of a step; as many as `plan` assumes unless given, or the next number that is dealt evenly.
    """
    return predicted(priced(model, cluster, pins, global_batch))


def priced(
    model: str | Transformer,
    cluster: str | Cluster,
    pins: GivenPins,
    global_batch: int | None,
) -> tuple[Step, ...]:
    """The steps behind it, which know what was understood of the model and the pins."""
    if not isinstance(model, str | Transformer):
        raise PlanError(f"price of {what_is(model)}", "a model reference or a Transformer", "write llama3-8b")
    described = transformer_of(model) if isinstance(model, str) else model
    devices = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    texts = tuple(map(_text, pins.items())) if isinstance(pins, Mapping) else pin_texts(pins)
    given = configured(texts, devices.device_count, global_batch)
    if given.skew:
        _check_skew(given, described)
    return steps_of(described, given, devices)


def _check_skew(given: Configuration, model: Transformer) -> None:
    """Refuses a skew where no rank can have more rows than another."""
    pin = f"pin skew={given.skew:g}"
    if model.experts < 2:
        raise PlanError(f"{pin} of a model without experts", "a mixture of experts", "drop the pin")
    if given.ep == 1:
        raise PlanError(f"{pin} with ep=1", "ep=2 or more: a rank with all experts has all rows", "drop or change one")
    if model.top == model.experts:
        every = f"{pin} where each token goes to all of {model.experts} experts"
        raise PlanError(every, "more experts than a token goes to: these loads are equal", "drop the pin")


def _text(pin: tuple[str, object]) -> str:
    name, value = pin
    return f"{name}={'+'.join(map(str, value)) if isinstance(value, tuple | list) else value}"
