"""What comes of the blocks of README.md and of three guides, and the numbers that two pages state."""

import json
import math
import re

import numpy as np
import pytest
import torch

import anechoic as an
from anechoic.runs.journal import read_journal
from tests.rules.pages import blocks, run, text_of


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
    scope = {}
    for block in blocks("docs/mechanisms.md")[:2]:  # tests/test_extending.py runs the others
        exec(block, scope)
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


@pytest.mark.slow
def test_the_page_of_releases_releases_running_totals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run("docs/releases.md", 2)
    printed = capsys.readouterr().out
    assert "Privacy unit:     one user" in printed and "promised of each user" in " ".join(printed.split())
    mech, error = scope["mech"], scope["error"]
    assert mech.epsilon() <= 1 and f"at most {error:.1f}" in printed
    book = read_journal(tmp_path / "counts.journal")
    assert (book.first, book.end, book.fingerprint) == (0, 60, mech.fingerprint)
    # the same users and days once more, without noise
    rng, sums = np.random.default_rng(0), np.zeros(20)
    for _ in range(60):
        day = [mech.grid.to_grid(one) for one in rng.poisson(1.0, (50, 20))]
        sums += sum(mech.grid.release(one, np.zeros(20, int)) for one in day)
    off = scope["running"] - sums
    assert 0 < np.abs(off).max() < 6 * error


def test_each_participation_of_the_page_of_releases_is_one():
    table = text_of("docs/releases.md").split("|---|---|")[1].split("\n\n")[0]
    names = re.findall(r"`(\w+)\([^`]*\)`", table)
    assert sorted(names) == ["Cyclic", "FullBatch", "MinSep", "OncePerEpoch", "Single"]
    assert all(hasattr(an.participation, name) for name in names)


def test_the_guesses_of_the_page_for_reviewers():
    guesses = r"(\d+) times in 100 at ε = 1, (?:and )?(\d+) at ε = 4(?:, (\d+) at ε = 8)?"
    gaussian, worst = re.findall(guesses, " ".join(text_of("docs/reviewer.md").split()))
    for epsilon, percent in zip((1.0, 4.0, 8.0), gaussian, strict=True):
        mu = an.accounting.gaussian_mu(epsilon, 1e-5)
        assert round(50 * math.erfc(-mu / 2 / math.sqrt(2))) == int(percent)
    for epsilon, percent in zip((1.0, 4.0), worst, strict=False):
        assert round(100 * (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))) == int(percent)


def test_the_table_of_the_page_for_reviewers():
    """The figures of the statement of one Gaussian release at each epsilon."""
    table = text_of("docs/reviewer.md").split("| by chance |")[1].split("\n\n")[0].splitlines()[1:]
    made = []
    for epsilon in (0.1, 0.5, 1, 2, 4, 8, 10):
        sampling = an.sampling.External(an.participation.Single(), 1, steps=1)
        mechanism = an.calibrate(an.strategies.Identity(1), sampling=sampling, epsilon=epsilon, delta=1e-5)
        attacker = json.loads(mechanism.report("json"))["attacker"]
        shares = [
            attacker["membership"][0]["right"],  # even odds
            attacker["rates"][1]["true_positive"],  # 1 % of the others are accused
            attacker["membership"][2]["believed_at_1_percent"],  # 1 % of all are in
            attacker["attribute"][1]["right"],  # 10 values
        ]
        made.append(f"| {epsilon} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    assert table == made
