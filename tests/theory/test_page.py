"""What docs/theory.md names is there, and the examples of the docstrings run."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from anechoic import theory

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
MODULES = ["mirror", "optimal", "problems", "spectra", "strongly_convex", "suboptimality"]


def test_the_names_of_the_page_exist():
    table = (
        PAGE.read_text(encoding="utf-8").split("## What else is here")[1].split("## Can I learn without")[0]
    )
    names = set(re.findall(r"`(?:[a-z_]+\.)?([a-z_0-9]+)`", table))
    assert {"trajectory", "restart_terms", "theorem_d13"} <= names
    modules = {path.stem for path in Path(theory.__file__).parent.glob("*.py")}
    inside = {name for one in modules for name in vars(importlib.import_module(f"anechoic.theory.{one}"))}
    assert names <= {"theory"} | modules | inside


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.theory.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
