"""What every command that takes a model reads of it from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import ModelError

if TYPE_CHECKING:
    from meshwright.models.reference import Reference


def add_model_arguments(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """optional: a command may do without the model, and says itself when it may not."""
    parser.add_argument(
        "model",
        nargs="?" if optional else None,
        help="a family with settings (gpt, llama?layers=4), a named size, hf:TYPE, file.py:function",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="FILE.PY:LINE=ANSWER",
        help="a line of the model that asks for a tensor's value, with its answer, True or False",
    )
    parser.add_argument("--seq", type=int, metavar="S", help="sequence length; the same as --set seq=S")


def reference_of(args: argparse.Namespace) -> Reference:
    from meshwright.models.reference import parse_reference

    sequence = [] if args.seq is None else [f"seq={args.seq}"]
    if sequence and any(setting.startswith("seq=") for setting in args.set):
        raise ModelError(f"--seq {args.seq} and --set seq=...", "one of the two", "drop one")
    return parse_reference(args.model, [*args.set, *sequence])


def check_folder(option: str, path: str | None) -> None:
    """Refuses at once what could not be written after minutes."""
    if path and path != "-" and not (folder := Path(path).parent).is_dir():
        raise ModelError(f"{option} {path}: no folder {folder}", "a folder that is there", "make it, or name another")
