"""The shape of the package: import order, exported names, and a command line that starts at once."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from commands import run_quick

import meshwright

ROOT = Path(meshwright.__file__).parent
ORDER = [
    "errors",
    "sizes",
    "cutting",
    "methods",
    "caches",
    "torch_compat",
    "models",
    "select",
    "capture",
    "cluster",
    "layout",
    "rules",
    "pins",
    "profile",
    "cost",
    "plan",
    "price",
    "schedule",
    "generate",
    "remat",
    "simulate",
    "predict",
    "configuration",
    "planner",
    "explain",
    "runtime",
    "report",
    "hf",
    "api",
    "cli",
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}
FACADE = ("meshwright", "meshwright.__main__")
"""What stands after everything: it says where names and methods are (`meshwright.methods`)."""


def imports_of(source: str) -> set[str]:
    """Modules of ours that a file imports: at its top, inside functions, and by name (`import_module`, or a text that
    is a module's name, a function's or the beginning of one's). Imports for annotations alone are none."""
    found: set[str] = set()
    for node in nodes(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.JoinedStr) and isinstance(
            first := node.values[0] if node.values else None, ast.Constant
        ):
            text = str(first.value)
            found |= {name for name in MODULES if text.startswith("meshwright.") and name.startswith(text)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.partition(":")[0])
    return found & set(MODULES) - set(FACADE)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Like `ast.walk`, without contexts of names and blocks for annotations alone."""
    left: list[object] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, ast.AST) and not isinstance(node, ast.expr_context):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            yield node
            left += [getattr(node, field, None) for field in node._fields]


@cache
def import_graph() -> dict[str, set[str]]:
    """By module, those of ours that it imports."""
    return {name: imports_of(path.read_text()) - {name} for name, path in MODULES.items() if name not in FACADE}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        path.append(name)
        for other in graph[name]:
            if other not in number:
                visit(other)
            if other in path:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            at = path.index(name)
            found.append(sorted(path[at:]))
            del path[at:]

    for name in graph:
        if name not in number:
            visit(name)
    return [component for component in found if len(component) > 1]


def test_a_package_imports_only_those_before_it() -> None:
    """Imports inside functions and by name are counted."""
    wrong = []
    for name, others in import_graph().items():
        home = name.split(".")[1]
        assert home in ORDER, f"{home} has no place in the order of packages"
        wrong += [f"{name} imports {other}" for other in others if ORDER.index(other.split(".")[1]) > ORDER.index(home)]
    assert not wrong


def test_no_modules_import_each_other() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles(import_graph()) == []


def test_imports_that_hide_are_found(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "def f(name):\n"
        "    from meshwright.plan import plan\n"
        "    import_module('meshwright.planner.reprice').reprice\n"
        "    HOMES['a'] = 'meshwright.explain.diff:diff'\n"
        "    import_module(f'meshwright.select.methods.b{name}')\n"
    )
    found = imports_of(hidden.read_text())
    assert found == {
        "meshwright.plan.plan",
        "meshwright.planner.reprice",
        "meshwright.explain.diff",
        "meshwright.select.methods.beam",
    }


@pytest.fixture(scope="module")
def in_a_new_process() -> str:
    """The modules that planning loads, and what two names are once packages of these names are loaded."""
    script = (
        "import sys, meshwright.api, meshwright.runtime.fit; print(*sys.modules)\n"
        "import meshwright as mw, meshwright.plan.plan, meshwright.capture.build; print(mw.plan, mw.capture)"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_planning_loads_no_searchers_of_the_survey(in_a_new_process: str) -> None:
    """They are there for `meshwright solve --method` and the benches."""
    found = in_a_new_process.splitlines()[0].split()
    searchers = ("meshwright.select.methods", "meshwright.select.contest")
    assert [name for name in found if name.startswith(searchers)] == []


def test_private_torch_names_live_behind_one_door() -> None:
    wrong = []
    suspects = [path for path in ROOT.rglob("*.py") if re.search(r"torch[\w.]*\._", path.read_text())]
    assert ROOT / "torch_compat.py" in suspects
    for path in suspects:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [n for n in names if n.startswith("torch") and any(part.startswith("_") for part in n.split("."))]
            if private and path.name != "torch_compat.py":
                wrong.append(f"{path.relative_to(ROOT)}: {private}")
    assert not wrong


def test_exported_names() -> None:
    assert sorted(meshwright.__all__) == [
        "Cluster", "Constraints", "Layout", "Mesh", "MeshwrightError", "Plan", "Program", "Trainer", "capture",
        "clear_caches", "compare", "export", "fit", "gpipe", "load", "load_cluster", "loader", "parallelize", "plan",
        "price", "profile", "register_rule", "save",
    ]  # fmt: skip
    for name in meshwright.__all__:
        assert getattr(meshwright, name) is not None


def test_functions_are_not_hidden_by_packages_of_the_same_name(in_a_new_process: str) -> None:
    assert in_a_new_process.splitlines()[1].count("<function") == 2


def test_help_answers_without_torch_in_under_300_ms() -> None:
    found = run_quick(["--help"], cpu_s=0.3)
    assert found.returncode == 0
    assert "plan" in found.stdout
    assert "train" in found.stdout


def test_only_predict_makes_predictions() -> None:
    """A file that is read makes what it says; everything else is predicted in one place."""
    wrong = []
    suspects = [path for path in ROOT.rglob("*.py") if "Prediction(" in path.read_text()]
    assert suspects
    for path in suspects:
        home = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name in ("Prediction", "StagePrediction") and home != "predict":
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_benches_import_names_that_are_there() -> None:
    """Those inside functions too: no test runs every bench."""
    missing = []
    for path in sorted((ROOT.parent / "bench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwright"):
                module = importlib.import_module(str(node.module))
                names = (alias.name for alias in node.names if not hasattr(module, alias.name))
                missing += [f"{path.name}: {node.module}.{name}" for name in names if not _has_module(module, name)]
    assert not missing


def _has_module(package: ModuleType, name: str) -> bool:
    return hasattr(package, "__path__") and importlib.util.find_spec(f"{package.__name__}.{name}") is not None
