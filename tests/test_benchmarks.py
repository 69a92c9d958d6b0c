"""Benchmarks are run by hand: here only that they are listed, and import what there is."""

import ast
import importlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
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


@pytest.fixture
def grid(adaptive, tmp_path):
    """Results that train nothing: the best rate is 64; and what was asked for."""
    cells, asked = adaptive("cells"), []

    def results(path=tmp_path / "grid.jsonl"):
        def train(cell, rates, seeds):
            asked.append((cell.arm, len(rates), seeds))
            made._record(cell, rates, seeds, -abs(np.array([rates] * len(seeds)) - 64.0))

        made = cells.Results(path, tmp_path)
        made._train = train
        return made

    return cells.Cell("digits", 0.3, "drawn", "momentum", "cooldown", "independent"), results, asked


def test_a_grid_that_was_stopped_goes_on_and_grows_until_the_best_rate_is_inside(grid, tmp_path):
    cell, results, asked = grid
    found, path = results(), tmp_path / "grid.jsonl"
    found.complete(cell, 2)
    assert found.best(cell) == pytest.approx(64.0) and not found.at_end(cell)
    before, trained = path.read_text(), len(asked)
    path.write_text(before + '{"cut')
    again = results()
    again.complete(cell, 2)
    assert again.of(cell).keys() == found.of(cell).keys() and path.read_text() == before
    again.complete(replace(cell, arm="default"), 2)  # the plan takes the same mechanism
    assert len(asked) == trained and again.of(replace(cell, arm="default")).keys() == found.of(cell).keys()


def test_seeds_of_the_grid_are_trained_once_and_those_of_all_rates_count(grid):
    cell, results, asked = grid
    found = results()
    found.train(cell, [1.0, 2.0], 2)
    found.train(cell, [1.0, 2.0, 4.0], 3)
    assert asked == [("independent", 2, [0, 1]), ("independent", 2, [2]), ("independent", 1, [0, 1, 2])]
    found.train(cell, [8.0], 1)
    assert {rate: len(metrics) for rate, metrics in found.of(cell).items()} == dict.fromkeys((1, 2, 4, 8), 1)
    found.until = 0.0
    with pytest.raises(TimeoutError, match="left for the next run"):
        found.train(cell, [8.0], 2)


@pytest.mark.parametrize("shared", [True, False])
def test_a_plan_that_reads_the_rate_is_trained_at_it_alone(grid, shared):
    cell, results, asked = grid
    order, found = "drawn" if shared else "fixed", results()
    alone = replace(cell, order=order, optimizer="Adam", schedule="constant")
    found.train(alone, [0.01, 0.02], 2)
    found.complete(plan := found.at_rate(alone), 3)
    assert asked[1:] == ([] if shared else [(plan.arm, 1, [0, 1])])
    assert {rate: len(metrics) for rate, metrics in found.of(plan).items()} == {0.02: 2}
    assert (found.plans[plan]["name"] == "Identity") == shared
    assert results().of(plan).keys() == {0.02}  # as it was written


def test_the_grid_has_cells_of_every_task_whatever_was_trained(adaptive, tmp_path):
    results = adaptive("cells").Results(tmp_path / "grid.jsonl", tmp_path)
    found = importlib.import_module("grid").cells(results)
    assert {cell.task for cell in found} == adaptive("tasks").TASKS.keys()
