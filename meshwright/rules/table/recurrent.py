"""Recurrent layers: samples apart. Time, features and gates stay whole; so do the weights, which all samples use."""

from __future__ import annotations

from meshwright.rules.rule import Call, Rule
from meshwright.rules.shapes import opaque
from meshwright.rules.signature import Signature, Term
from meshwright.rules.table.factories import invariant


def layers(states: int) -> Rule:
    """`states`: how many the layers carry from step to step; they come and go as (layers, samples, features)."""

    def build(call: Call) -> Signature:
        samples_first = call.arg(8, "batch_first", False)
        carried = [Term((("l",), ("b",), (f"h{n}",))) for n in range(states)]
        given, made = (Term((("b",), ("t",), (name,)) if samples_first else (("t",), ("b",), (name,))) for name in "io")
        weights, whole = opaque(call.types[1 + states :])
        fixed = whole | {"l", "t", "i", "o", *(f"h{n}" for n in range(states))}
        if call.arg(5, "dropout", 0.0) and call.arg(6, "train", False):
            fixed |= {"b"}  # what each rank draws would not be what one process draws
        # Before torch 2.12 traced states of several layers have a dim of one too many; when run they do not.
        left = [
            Term((("l",), ("z",), ("b",), (f"h{n}",))) if len(kind.sizes) == 4 else term
            for n, (term, kind) in enumerate(zip(carried, call.result_types[1:], strict=True))
        ]
        return Signature((given, *carried, *weights), (made, *left), fixed | {"z"})

    state = ", ".join(f"l! b h{n}!" for n in range(states))
    return Rule(build, shown=f"b t! i!, {state}, weights! -> b t! o!, {state}", filled=True)


_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
RULES = {f"aten.{name}.input": layers(states) for name, states in _STATES.items()}
# Sequences of several lengths laid end to end, step by step: no dim is one sample after another.
RULES |= {f"aten.{name}.data": Rule(invariant, shown="x! ... -> y! ..., everything whole") for name in _STATES}
