"""Benchmarks are run by hand: here only that they are listed, and import what there is."""

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
FILES = sorted(FOLDER.rglob("*.py"))


def ours(path):
    """(module, name) of every import of this package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "anechoic":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_a_benchmark_imports_is_there(path):
    for module, name in ours(path):
        found = importlib.import_module(module)
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


def test_every_benchmark_is_named():
    page = (FOLDER / "run.py").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        if path.name != "run.py":
            assert f'"{path.stem}"' in page, f"name {path.stem} in benchmarks/run.py"
