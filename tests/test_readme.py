"""Everything the README shows is run, and what it promises is there."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
def test_the_three_lines_of_pytorch(capsys):
    torch.manual_seed(0)
    (block,) = [text for text in BLOCKS if "PrivacyEngine" in text]
    scope = {}  # complete as pasted
    exec(block, scope)
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
    (block,) = [text for text in BLOCKS if "import anechoic as an" in text]
    scope = {}
    exec(block, scope)
    assert scope["mech"].epsilon() <= 8.0
    assert scope["an"].Mechanism.from_json(scope["text"]) == scope["mech"]
    assert "Chosen:" in capsys.readouterr().out


def test_every_block_is_run():
    assert len(BLOCKS) == 2


def test_links_and_pictures_exist():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_loop_with_the_advised_rate():
    text = (ROOT / "docs" / "choosing.md").read_text()
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "advice" in one]
    scope = {}  # complete as pasted
    exec(block, scope)
    assert scope["engine"].releases == 60
    assert scope["optimizer"].param_groups[0]["initial_lr"] == scope["advice"].rate
    assert scope["scheduler"].get_last_lr()[0] < scope["advice"].rate
