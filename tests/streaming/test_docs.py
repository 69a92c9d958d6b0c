"""What the pages show runs."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_first_lines_of_the_page_run():
    code = re.findall(r"```python\n(.*?)```", (DOCS / "streaming.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {"batch": ["a", "b"]}
    exec(code[0], names)
    assert names["release"].step == 0 and names["visits"].get() is names["release"]
    exec(code[1], {"streaming": names["streaming"], "batch": ["a", "b"], "ids": [1, 2]})


@pytest.mark.parametrize("name", ["estimator", "estimators"])
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.streaming.{name}"))
    assert found.attempted and not found.failed
