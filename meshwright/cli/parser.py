"""The argparse parser of the command line: a mistake is one message in three parts, not the usage of all options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from meshwright.errors import MeshwrightError

KINDS = {"int": "a whole number", "float": "a number such as 0.02"}
MISTAKES: tuple[tuple[str, Callable[[re.Match[str]], tuple[str, str]]], ...] = (
    (r"argument ([^:]+): invalid (\w+) value: (.+)", lambda m: (f"{m[1]} {m[3]}", KINDS.get(m[2], f"a {m[2]}"))),
    (r"argument ([^:]+): invalid choice: (\S+) \(choose from (.+)\)", lambda m: (f"{m[1]} {m[2]}", f"one of {m[3]}")),
    (r"argument ([^:]+): expected (.+?) arguments?", lambda m: (f"{m[1]} without a value", f"{m[2]} behind it")),
    (r"the following arguments are required: (.+)", lambda m: (f"nothing given for {m[1]}", "all that is required")),
    (r"unrecognized arguments: (.+)", lambda m: (f"unknown: {m[1]}", "options and names of this command")),
)
"""What argparse says, and (what was given, what was expected)."""


class CommandLineError(MeshwrightError):
    """Words on the command line that no command understands."""


class Parser(argparse.ArgumentParser):
    """Raises CommandLineError where argparse prints its usage and exits."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._negative_number_matcher = re.compile(r"-[.]?[0-9].*")  # -5GiB is a value, as -5 is

    def error(self, message: str) -> NoReturn:
        given, expected = message, ""
        for pattern, parts in MISTAKES:
            if found := re.fullmatch(pattern, message, re.DOTALL):
                given, expected = parts(found)
                break
        command = "".join(f"{word}: " for word in self.prog.split()[1:])
        raise CommandLineError(f"{command}{given}", expected, f"see `{self.prog} --help`")
