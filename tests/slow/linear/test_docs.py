"""What the page and the docstrings show runs."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="anechoic[sklearn] installs it")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "linear.md"


@pytest.mark.slow
def test_the_page_runs(capsys):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(code, names)
    assert names["model"].mechanism_.sampling.examples == 5000
    assert names["table"][-1].delta_ == 0.01 / 5000
    assert names["table"].score(names["people"], names["income"]) > 0.8
    assert names["steps"][-1].mechanism_.unit == "patient"
    assert "differential privacy" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifiers", "regressors"])
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.linear.{name}"))
    assert found.attempted and not found.failed
