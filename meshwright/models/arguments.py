"""What commands have in common: the model and its settings, files that are written, `--json`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import ModelError

if TYPE_CHECKING:
    from meshwright.models.reference import Reference


def add_model_arguments(parser: argparse.ArgumentParser, optional: bool = False, plans: bool = False) -> None:
    """optional: a command may do without the model, and says itself when it may not. plans: it takes plan files too."""
    parser.add_argument(
        "model",
        nargs="?" if optional else None,
        help="a named size (llama3-8b), a family with settings (llama?layers=4), hf:TYPE, a folder with config.json, "
        f"file.py:function{', or a plan file' if plans else ''}",
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


def check_reference(args: argparse.Namespace) -> Reference | None:
    """Refuses at once what needs no torch to be seen as wrong: names, settings, files that are not there. The
    reference, where it can be had so."""
    name = str(args.model).partition("?")[0]
    if (name.startswith("hf:") or "/" in name.partition(":")[0]) and find_spec("transformers") is None:
        raise ModelError("hf: models need the `transformers` package", "it installed", "pip install 'meshwright[hf]'")
    if ":" not in name:
        return reference_of(args)
    place = name.rpartition(":")[0]
    if place.endswith(".py") and not os.path.isfile(place):
        raise ModelError(f"no file {place}", "a Python file", "check the path")
    return None


def check_folder(option: str, path: str | None) -> None:
    """Refuses at once what could not be written after minutes."""
    if path and path != "-" and not os.path.isdir(folder := Path(path).parent):
        raise ModelError(f"{option} {path}: no folder {folder}", "a folder that is there", "make it, or name another")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """`--json` alone prints, `--json FILE` writes."""
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help=f"{what} as JSON: to FILE, or printed where none is given"
    )


def write_json(path: str, text: str) -> None:
    """`-`: printed."""
    if path == "-":
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(text, file=sys.stderr)
        raise ModelError(f"{path} cannot be written: {error.strerror}", "a writable path") from error
