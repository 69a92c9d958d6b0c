"""What comes of the blocks of README.md and of two guides, and the numbers that two pages state."""

import math
import re

import pytest
import torch

import anechoic as an
from tests.rules.pages import run, text_of


@pytest.mark.slow
def test_the_three_lines_of_pytorch(capsys):
    torch.manual_seed(0)
    scope = run("README.md", 1)
    table, rest = capsys.readouterr().out.split("\n\n", 1)
    row = next(line for line in table.splitlines() if line.startswith("→"))
    memory = re.search(r"[\d.]+ (?:B|KiB)(?=  )", row).group()
    assert f"Its noise state is {memory}," in rest.replace("\n", " ")
    epsilon = next(line for line in rest.splitlines() if re.fullmatch(r"[\d.]+", line))
    assert 0 < float(epsilon) <= 8.0
    assert "Privacy unit:     one example" in rest
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


def test_the_guesses_of_the_page_for_reviewers():
    guesses = r"(\d+) times in 100 at ε = 1, (?:and )?(\d+) at ε = 4(?:, (\d+) at ε = 8)?"
    gaussian, worst = re.findall(guesses, text_of("docs/reviewer.md"))
    for epsilon, percent in zip((1.0, 4.0, 8.0), gaussian, strict=True):
        mu = an.accounting.gaussian_mu(epsilon, 1e-5)
        assert round(50 * math.erfc(-mu / 2 / math.sqrt(2))) == int(percent)
    for epsilon, percent in zip((1.0, 4.0), worst, strict=False):
        assert round(100 * (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))) == int(percent)
