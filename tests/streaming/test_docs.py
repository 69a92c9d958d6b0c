"""What the pages show runs."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from anechoic.streaming.pending import GROUP

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
def test_the_first_lines_of_the_page_run():
    code = re.findall(r"```python\n(.*?)```", (DOCS / "streaming.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(code[0], names)
    assert names["release"].step == 0 and names["visits"].get() is names["release"]
    exec(code[1], names)
    assert list(names["release"].named("carriers")) == ["AA", "UA"]
    exec(code[2], names)
    assert list(names["delays"].get().named("delay")) == ["AA", "UA", "DL"]
    exec(code[3], names)
    assert names["visits"].participation is not None
    exec(code[4], names)
    assert names["hours"].step == 48
    exec(code[5], names)
    assert len(code) == 6
    assert names["months"].end_of(0) == "2024-01-31T23:00:00+00:00"


@pytest.mark.slow
def test_what_the_page_for_offices_shows_runs():
    text = (DOCS / "offices.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert list(names["release"].named()) == ["flu", "measles"]
    assert names["daily"].between(0, 23).estimate == pytest.approx(25, abs=6 * 40)
    both = names["anechoic"].compose(names["came"].mechanism, names["final"].mechanism)
    assert both.epsilon(1e-6) == pytest.approx(1.02, abs=0.01)


def test_the_page_for_operators_says_what_one_commit_holds():
    text = (DOCS / "streaming-operators.md").read_text(encoding="utf-8")
    assert f"`anechoic stream` keeps {GROUP:,} steps in one commit" in text


@pytest.mark.parametrize("name", ["stream", "partition_selection", "clock"])
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.streaming.{name}"))
    assert found.attempted and not found.failed
