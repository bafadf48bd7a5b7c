"""The error tree. Every user error says what was given, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """`1 stage`, `2 stages`."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'}"


def what_is(given: object) -> str:
    """`None`, `the class Linear`, `the text 'mse'`, `a list`: of what cannot be used."""
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"the text {given!r}" if isinstance(given, str) else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def did_you_mean(given: str, known: Iterable[str], otherwise: str = "name one of these", most: int = 3) -> str:
    """What to do about a name that is not known: the nearest of those that are."""
    from difflib import get_close_matches

    close = get_close_matches(given, list(known), n=most)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


class MeshwrightError(Exception):
    """Base of every error a user can cause; the CLI prints its message and no traceback."""

    def __init__(self, given: str, expected: str = "", todo: str = "") -> None:
        self.given, self.expected, self.todo = given, expected, todo
        parts = [given, f"expected: {expected}" if expected else "", f"to do: {todo}" if todo else ""]
        super().__init__("\n  ".join(part for part in parts if part))

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show: the message alone."""
        return [f"{type(self).__name__}: {self}"]


class ModelError(MeshwrightError):
    """A model reference, its options or its batch cannot be used."""


class CaptureError(MeshwrightError):
    """A model could not be turned into a Program."""


class CaptureWarning(UserWarning):
    """The Program is not all that the model does: a branch was left out, random numbers are the same every step."""


class ClusterError(MeshwrightError):
    """A cluster, mesh or device description is wrong."""


class LayoutError(MeshwrightError):
    """A layout does not fit its tensor or mesh."""


class RuleError(MeshwrightError):
    """A sharding rule is malformed or contradicts its op."""


class RuleWarning(UserWarning):
    """An op runs alike on every device because no rule was found for it, or a registered placement is wrong."""


class ProblemError(MeshwrightError):
    """A selection problem is malformed or cannot be met."""

    def __init__(self, given: str, expected: str = "", todo: str = "correct the problem") -> None:
        super().__init__(given, expected, todo)


class PlanError(MeshwrightError):
    """A plan is malformed, infeasible, or belongs to something else."""


class RunError(MeshwrightError):
    """A run cannot start or go on."""


class VerifyError(MeshwrightError):
    """A noun failed its own `verify()`: a bug in meshwright or a hand-edited file."""
