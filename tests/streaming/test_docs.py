"""What the pages show runs."""

import doctest
import importlib
import re

import numpy as np
import pytest

import anechoic as an
from anechoic.runs.journal import read_journal
from anechoic.streaming.pending import GROUP
from tests.rules.pages import blocks, text_of

#: What each block of docs/streaming.md leaves, in their order.
LEFT = [
    lambda names: names["release"].step == 0 and names["visits"].get() is names["release"],
    lambda names: list(names["release"].named("carriers")) == ["AA", "UA"],
    lambda names: list(names["delays"].get().named("delay")) == ["AA", "UA", "DL"],
    lambda names: names["visits"].participation is not None,
    lambda names: names["hours"].step == 48,
    lambda names: names["months"].end_of(0) == "2024-01-31T23:00:00+00:00",
    lambda names: list(names["found"].named()) == ["flu", "measles"],
    lambda names: abs(names["daily"].between(0, 23).estimate - 25) < 6 * 40,
    lambda names: names["final"].step == 1,
    lambda names: names["mech"].epsilon() <= 1,
]


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, left in zip(blocks("docs/streaming.md"), LEFT, strict=True):
        exec(code, names)
        assert left(names), code
    both = an.compose(names["came"].mechanism, names["final"].mechanism)
    assert both.epsilon(1e-6) == pytest.approx(1.02, abs=0.01)
    printed, error = capsys.readouterr().out, names["error"]
    assert "Privacy unit: one user" in " ".join(printed.split()) and f"at most {error:.1f}" in printed
    book = read_journal(tmp_path / "counts.journal")
    assert (book.first, book.end, book.fingerprint) == (0, 60, names["mech"].fingerprint)
    # the same users and days once more, without noise
    rng, sums, grid = np.random.default_rng(0), np.zeros(20), names["mech"].grid
    for _ in range(60):
        day = [grid.to_grid(one) for one in rng.poisson(1.0, (50, 20))]
        sums += sum(grid.release(one, np.zeros(20, int)) for one in day)
    off = names["running"] - sums
    assert 0 < np.abs(off).max() < 6 * error


def test_each_participation_of_own_sums_is_one():
    text = text_of("docs/streaming.md").split("## Can I release sums of my own?")[1]
    table = text.split("|---|---|")[1].split("\n\n")[0]
    names = re.findall(r"`(\w+)\([^`]*\)`", table)
    assert sorted(names) == ["Cyclic", "FullBatch", "MinSep", "OncePerEpoch", "Single"]
    assert all(hasattr(an.participation, name) for name in names)


def test_the_page_for_operators_says_what_one_commit_holds():
    assert f"keeps {GROUP:,} steps in one commit" in text_of("docs/streaming-operators.md")


@pytest.mark.parametrize("name", ["stream", "partition_selection", "clock"])
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.streaming.{name}"))
    assert found.attempted and not found.failed
