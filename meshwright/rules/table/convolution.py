"""Convolution, pooling, padding and resampling: batch and channels; the spatial dims stay whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from meshwright.layout.states import P
from meshwright.rules.rule import Call, Lowering, Rule, Split, with_arg
from meshwright.rules.shapes import named
from meshwright.rules.signature import Dim, Signature, Term

GROUPS = (6, "groups", 1)
"""Where an op has its groups, by position and by name, and how many they are otherwise."""


def convolution(call: Call) -> Signature:
    """Input channels are (groups, inputs per group), output channels (groups, outputs per group).

    Without groups the input channels are contracted, and the bias is then `P`: the sum must hold it once.
    """
    spatial = call.rank(1) - 2
    batch: tuple[Dim, ...] = (("b",),) if call.rank() == spatial + 2 else ()
    groups = call.arg(*GROUPS)
    grouped: Dim = ("g",) if groups > 1 else ()
    inputs, outputs = (*grouped, "i"), (*grouped, "o")
    sizes = [tuple((f"{letter}{n}",) for n in range(spatial)) for letter in "xky"]
    operands = [Term((*batch, inputs, *sizes[0])), Term((outputs, ("i",), *sizes[1]))]
    if len(call.types) > 2:
        operands.append(Term((outputs,), (("i", P),)))
    fixed = {name for dims in sizes for dim in dims for name in dim}
    # Under groups the inner channels of a group are not the outermost part of any dim but the weight's own.
    fixed |= {"i", "o"} if grouped else set()
    result = Term((*batch, outputs, *sizes[2]))
    return Signature(tuple(operands), (result,), frozenset(fixed), given=(("g", groups),))


def transposed(call: Call) -> Signature:
    """As a convolution, but the weight has the input channels in front."""
    plain = convolution(call)
    image, weight, *bias = plain.operands
    kernel = weight.dims[2:]
    turned = Term((image.dims[-1 - len(kernel)], ("o",), *kernel))
    return replace(plain, operands=(image, turned, *bias))


def local_groups(split: Split) -> Lowering:
    ways = split.ways("g")
    if ways == 1:
        return Lowering(split.local)
    return Lowering(with_arg(split.local, *GROUPS[:2], split.call.arg(*GROUPS) // ways))


def spatial(count: int, linear: bool) -> Callable[[Call], Signature]:
    """Pooling and resampling over the last `count` dims, each leading dim on its own."""

    def build(call: Call) -> Signature:
        lead = named(call.rank() - count)
        before, after = (tuple((f"{letter}{n}",) for n in range(count)) for letter in "xy")
        fixed = frozenset(name for dim in before + after for name in dim)
        signature = Signature((Term(lead + before),), (Term(lead + after),) * len(call.op.results), fixed)
        return signature.linear() if linear else signature

    return build


def pixel_shuffle(call: Call) -> Signature:
    """Channels are (kept, upscale, upscale); each picture dim becomes (itself, upscale)."""
    factor, lead = call.arg(1, "upscale_factor"), named(call.rank() - 3)
    packed, spread = Term((*lead, ("c", "r", "s"), ("h",), ("w",))), Term((*lead, ("c",), ("h", "r"), ("w", "s")))
    given = (("r", factor), ("s", factor))
    return Signature((packed,), (spread,), frozenset({"r", "s"}), given=given).linear()


def pixel_unshuffle(call: Call) -> Signature:
    factor, lead = call.arg(1, "downscale_factor"), named(call.rank() - 3)
    packed, spread = Term((*lead, ("c", "r", "s"), ("h",), ("w",))), Term((*lead, ("c",), ("h", "r"), ("w", "s")))
    given = (("r", factor), ("s", factor))
    return Signature((spread,), (packed,), frozenset({"r", "s"}), given=given).linear()


def windows(call: Call) -> Signature:
    """`im2col`: every window of a picture as a column, channel by channel."""
    batch = named(call.rank() - 3)
    kernel = prod(call.arg(1, "kernel_size"))
    pictures, columns = Term((*batch, ("c",), ("x",), ("y",))), Term((*batch, ("c", "k"), ("l",)))
    return Signature((pictures,), (columns,), frozenset("xykl"), given=(("k", kernel),)).linear()


def from_windows(call: Call) -> Signature:
    """`col2im`: windows summed back into a picture."""
    batch = named(call.rank() - 2)
    kernel = prod(call.arg(2, "kernel_size"))
    pictures, columns = Term((*batch, ("c",), ("x",), ("y",))), Term((*batch, ("c", "k"), ("l",)))
    return Signature((columns,), (pictures,), frozenset("xykl"), given=(("k", kernel),)).linear()


def sampled(call: Call) -> Signature:
    """`grid_sampler`: pictures read at places, which may be apart where the pictures are whole."""
    count = call.rank() - 2
    before, after = (tuple((f"{letter}{n}",) for n in range(count)) for letter in "xy")
    fixed = frozenset({"at", *(name for dim in before for name in dim)})
    pictures, places = Term((("b",), ("c",), *before)), Term((("b",), *after, ("at",)))
    return Signature((pictures, places), (Term((("b",), ("c",), *after)),), fixed).linear(0)


_CONVOLUTION = "b (g i) x!, (g o) i k!, (g o)[i=P] -> b (g o) y!"
_SPATIAL = "... x! -> ... y!"
RULES = {
    f"aten.conv{n}d{overload}": Rule(convolution, local_groups, shown=_CONVOLUTION)
    for n in (1, 2, 3)
    for overload in (".default", ".padding")
}
RULES |= {f"aten.max_pool{n}d": Rule(spatial(n, linear=False), shown=_SPATIAL, uneven=False) for n in (1, 2, 3)}
RULES |= {f"aten.avg_pool{n}d": Rule(spatial(n, linear=True), shown=_SPATIAL, uneven=False) for n in (1, 2, 3)}
RULES |= {f"aten.adaptive_avg_pool{n}d": Rule(spatial(n, linear=True), shown=_SPATIAL, uneven=False) for n in (1, 2, 3)}
RULES |= {
    f"aten.adaptive_max_pool{n}d": Rule(spatial(n, linear=False), shown=_SPATIAL, uneven=False) for n in (1, 2, 3)
}
RULES |= {
    f"aten.conv_transpose{n}d": Rule(transposed, local_groups, shown="b (g i) x!, (g i) o k!, (g o)[i=P] -> b (g o) y!")
    for n in (1, 2, 3)
}
RULES |= {
    f"aten.upsample_{kind}": Rule(spatial(int(kind[-2]), linear=True), shown=_SPATIAL, uneven=False)
    for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
}
RULES |= {
    f"aten.{kind}_pad{n}d": Rule(spatial(n, linear=True), shown=_SPATIAL, uneven=False)
    for kind in ("reflection", "replication")
    for n in (1, 2, 3)
}
RULES |= {
    "aten.pixel_shuffle": Rule(pixel_shuffle, shown="... (c r! s!) h w -> ... c (h r!) (w s!), or +", uneven=False),
    "aten.pixel_unshuffle": Rule(pixel_unshuffle, shown="... c (h r!) (w s!) -> ... (c r! s!) h w, or +", uneven=False),
    "aten.im2col": Rule(windows, shown="... c x! y! -> ... (c k!) l!, or +", uneven=False),
    "aten.col2im": Rule(from_windows, shown="... (c k!) l! -> ... c x! y!, or +", uneven=False),
    "aten.grid_sampler": Rule(sampled, shown="b c x!, b y at! -> b c y, or + of the first", uneven=False),
}
