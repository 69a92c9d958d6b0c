"""Benchmarks are run by hand: here only that they are listed, and import what there is."""

import ast
import importlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.test_public_names import needed_by

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
        for package in needed_by(module.removeprefix("anechoic.")):
            pytest.importorskip(package, reason="an extra installs it")
        found = importlib.import_module(module)
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


def test_every_benchmark_is_named():
    page = (FOLDER / "run.py").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        if path.name != "run.py":
            assert f'"{path.stem}"' in page, f"name {path.stem} in benchmarks/run.py"


@pytest.fixture
def adaptive(monkeypatch):
    """Modules of the folder of the same name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    return lambda name: importlib.import_module(f"adaptive.{name}")


@pytest.mark.parametrize(("widths", "clip"), [((5, 3), 1.0), ((5, 4, 3), 0.5)])
def test_clipped_gradients_of_layers_are_those_of_single_examples(adaptive, widths, clip):
    tasks, g = adaptive("tasks"), torch.Generator().manual_seed(1)
    shapes = tuple(shape for i, o in pairwise(widths) for shape in ((i, o), (o,)))
    logits = tasks._softmax if len(widths) == 2 else tasks._mlp
    x, y = 3.0 * torch.randn(2, 6, 5, generator=g), torch.randint(3, (2, 6), generator=g)
    task = tasks.Task("small", (x[0], y[0], x[1], y[1]), shapes, logits, 6, 1, layers=True)
    theta = torch.randn(2, 3, task.dimension, generator=g)
    there = torch.ones(2, 6)
    there[1, 4:] = 0.0
    found = task.clipped_sum(theta, x, y, there, clip)
    each = replace(task, layers=False).clipped_sum(theta, x, y, there, clip)
    assert torch.allclose(found, each, atol=1e-5) and found.norm(dim=-1).max() > 1.0


def test_a_grid_that_was_stopped_goes_on_and_grows_until_the_best_rate_is_inside(adaptive, tmp_path):
    cells, path = adaptive("cells"), tmp_path / "grid.jsonl"
    cell = cells.Cell("digits", 3.0, "fixed", "SGD", "constant", "no noise")

    def results():
        made = cells.Results(path, tmp_path)
        made._train = lambda cell, rates, seeds: made._write(
            {**vars(cell), "plan": {"advised": 0.0}, "rates": rates, "seeds": seeds}
            | {"metrics": [[-abs(rate - 64.0)] * len(seeds) for rate in rates]}
        )
        made.complete(cell, 2)
        return made

    found = results()
    assert found.best(cell) == pytest.approx(64.0) and not found.at_end(cell)
    before = path.read_text()
    path.write_text(before + '{"cut')
    assert results().of(cell).keys() == found.of(cell).keys() and path.read_text() == before
