"""The shape of the package: import order, exported names, and a command line that starts at once."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import meshwright

ROOT = Path(meshwright.__file__).parent
ORDER = [
    "errors",
    "torch_compat",
    "models",
    "select",
    "capture",
    "cluster",
    "layout",
    "rules",
    "profile",
    "cost",
    "plan",
    "price",
    "schedule",
    "generate",
    "remat",
    "simulate",
    "predict",
    "solve",
    "runtime",
    "report",
    "api",
    "cli",
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "meshwright" and len(parts) > 1:
                found.add(parts[1])
    return found


def test_a_package_imports_only_those_before_it() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        home = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if home in ("__init__", "__main__"):
            continue
        assert home in ORDER, f"{home} has no place in the order of packages"
        wrong += [
            f"{path.relative_to(ROOT)} imports {name}"
            for name in imports(path)
            if ORDER.index(name) > ORDER.index(home)
        ]
    assert not wrong


def test_private_torch_names_live_behind_one_door() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [n for n in names if n.startswith("torch") and any(part.startswith("_") for part in n.split("."))]
            if private and path.name != "torch_compat.py":
                wrong.append(f"{path.relative_to(ROOT)}: {private}")
    assert not wrong


def test_exported_names() -> None:
    assert sorted(meshwright.__all__) == [
        "Cluster", "Layout", "Mesh", "MeshwrightError", "Plan", "Program", "Trainer", "capture", "export", "fit",
        "gpipe", "load", "load_cluster", "loader", "parallelize", "plan", "profile", "register_rule", "save",
    ]  # fmt: skip
    for name in meshwright.__all__:
        assert getattr(meshwright, name) is not None


def test_functions_are_not_hidden_by_packages_of_the_same_name() -> None:
    script = "import meshwright as mw, meshwright.plan.plan, meshwright.capture.build; print(mw.plan, mw.capture)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.count("<function") == 2


def test_help_answers_without_torch_in_under_300_ms() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run([sys.executable, "-m", "meshwright", "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "plan" in found.stdout
    assert "train" in found.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
