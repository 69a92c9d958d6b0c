"""What the README and the pages of choosing and design show is run, and what they promise is there."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def run(page, blocks):
    """What the blocks of a page have at their end, pasted one after the other."""
    shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    assert len(shown) == blocks
    scope = {}
    for block in shown:
        exec(block, scope)
    return scope


@pytest.mark.slow
def test_the_three_lines_of_pytorch(capsys):
    torch.manual_seed(0)
    scope = run("README.md", 1)
    printed = capsys.readouterr().out
    table, rest = printed.split("\n\n", 1)
    row = next(line for line in table.splitlines() if line.startswith("→"))
    memory = re.search(r"[\d.]+ (?:B|KiB)(?=  )", row).group()
    assert f"Its noise state is {memory}," in rest.replace("\n", " ")
    epsilon = next(line for line in rest.splitlines() if re.fullmatch(r"[\d.]+", line))
    assert 0 < float(epsilon) <= 8.0
    assert "Privacy unit:     one example" in printed
    assert scope["engine"].releases == 60


@pytest.mark.slow
def test_design_without_training(capsys):
    scope = run("docs/mechanisms.md", 2)
    assert scope["mech"].epsilon() <= 8.0
    assert scope["an"].Mechanism.from_json(scope["text"]) == scope["mech"]
    assert f"{scope['dense'].lower_bound:.5f}" == "2.96146"
    assert "Chosen:" in capsys.readouterr().out


@pytest.mark.slow
def test_the_loop_with_the_advised_rate(capsys):
    scope = run("docs/choosing.md", 3)
    assert "Chosen:" in capsys.readouterr().out
    assert scope["engine"].releases == 60
    assert scope["optimizer"].param_groups[0]["initial_lr"] == scope["advice"].rate
    assert scope["scheduler"].get_last_lr()[0] < scope["advice"].rate
    assert scope["mech"].epsilon() <= 1.0


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
