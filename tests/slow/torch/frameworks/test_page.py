"""The scripts of docs/frameworks.md, with the frameworks themselves where they are installed."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from anechoic.errors import DesynchronizedError

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "frameworks.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.M | re.S))
#: These see what the stand-ins do; not these warnings of the frameworks about themselves.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def run(name, *edits):
    """What the script has at its end."""
    text = SCRIPTS[name]
    wanted = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    wanted |= {
        a.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for a in node.names
    }
    for package in {name.partition(".")[0] for name in wanted}:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make test-all installs it")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    torch.manual_seed(0)
    module = sys.modules["script"] = ModuleType("script")
    try:
        exec(compile(text, name, "exec"), vars(module))
    finally:
        del sys.modules["script"]
    return vars(module)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_of_the_page_runs_to_its_end(name):
    found = run(name)
    engine = found["engine"]
    assert engine.releases == engine.mechanism.steps
    assert 7 < engine.get_epsilon(1e-3) <= 8


def test_a_loader_that_accelerate_prepared_is_named():
    with pytest.raises(DesynchronizedError, match=r"leave it out of accelerator.prepare"):
        run(
            "Accelerate",
            (
                "model, optimizer = accelerator.prepare(model, optimizer)",
                "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
            ),
        )
