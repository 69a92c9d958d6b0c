"""What comes of the blocks of README.md and of two guides, and the numbers that two pages state."""

import json
import math
import re
import runpy
from itertools import product

import numpy as np
import pytest
import torch

import anechoic as an
from tests.rules.pages import ROOT, blocks, run, text_of


@pytest.mark.slow
def test_the_three_lines_of_pytorch(capsys):
    torch.manual_seed(0)
    scope = run("README.md", 1)
    table, rest = capsys.readouterr().out.split("\n\n", 1)
    row = next(line for line in table.splitlines() if line.startswith("→"))
    memory = re.search(r"[\d.]+ (?:B|KiB)(?=  )", row).group()
    assert f"noise state {memory}." in rest.replace("\n", " ")
    epsilon = next(line for line in rest.splitlines() if re.fullmatch(r"[\d.]+", line))
    assert 0 < float(epsilon) <= 8.0
    assert "Privacy unit:  one example" in rest
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


def test_the_table_of_why_correlated_noise_works_is_computed(tmp_path):
    page, why = text_of("docs/why.md"), runpy.run_path(str(ROOT / "benchmarks/why.py"))
    assert why["table"]() in page
    why["draw"](tmp_path)
    for name, said in {"why-totals.svg": "the best of all 2.4", "why-run.svg": "independent 11.4"}.items():
        drawn = (tmp_path / name).read_text("utf-8")
        assert f"images/{name}" in page and said in re.search("<title>(.*?)</title>", drawn)[1]


def of_the_grid(task, epsilon, arm, batches, optimizer="momentum"):
    """Rate -> (mean, standard error) of an arm, as the record of benchmarks/grid.py has it."""
    asked = {"task": task, "epsilon": epsilon, "arm": arm, "order": batches, "optimizer": optimizer}
    asked["schedule"] = "constant" if optimizer == "Adam" else "cooldown"
    found = {}
    for line in text_of("benchmarks/records/grid.jsonl").splitlines():
        one = json.loads(line)
        if asked.items() <= one.items() and not {"clip", "scale"} & one.keys():
            for rate, runs in zip(one["rates"], one["metrics"], strict=True):
                found[rate] = np.mean(runs), np.std(runs, ddof=1) / len(runs) ** 0.5
    return found


def test_the_first_table_of_the_readme_is_that_of_the_grid():
    drawn, fixed = ("DP-SGD", "independent", "default"), ("independent", "default")
    for arms, batches, epsilons in ((drawn, "drawn", (0.5, 2, 8)), (fixed, "fixed", (0.5, 2))):
        for epsilon in epsilons:
            best = [max(of_the_grid("mlp", epsilon, arm, batches).values()) for arm in arms]
            shown = " | ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in best)
            table = text_of("README.md").replace("*", "")
            assert f"| {shown} | 0.838 |" in table, (batches, epsilon, shown)


RATES = (2**-8, 2**-6, 2**-5, 2**-4, 2**-3, 2**-2)  # of the page


def test_the_table_of_adam_is_that_of_the_grid():
    arms = ("DP-SGD", "drawn"), ("independent", "drawn"), ("default", "drawn")
    rows = re.findall(r"^\| (?:drawn|fixed order) \| .*", text_of("docs/choosing.md"), re.MULTILINE)
    assert len(rows) == 5
    for row, (arm, batches) in zip(
        rows, (*arms, ("independent", "fixed"), ("default", "fixed")), strict=True
    ):
        means = {rate: mean for rate, (mean, _) in of_the_grid("digits", 3, arm, batches, "Adam").items()}
        for rate, cell in zip(RATES, row.split("|")[3:-1], strict=True):
            assert cell.strip(" *") == (f"{means[rate]:.3f}"[1:] if rate in means else ""), (row, rate)
        most = max(mean for rate, mean in means.items() if rate in RATES)
        assert f"**{most:.3f}**".replace("0.", ".") in row


def test_what_may_be_expected_is_what_the_grid_has():
    gains = {}
    for task, optimizer, batches in product(
        ("digits", "mlp", "softmax", "table"), ("momentum", "Adam"), ("drawn", "fixed")
    ):
        for epsilon in (0.3, 0.5, 1, 2, 3, 8):
            ours = of_the_grid(task, epsilon, "default", batches, optimizer)
            theirs = of_the_grid(task, epsilon, "DP-SGD", "drawn", optimizer)
            if ours and theirs:
                gained = 100 * (max(ours.values())[0] - max(theirs.values())[0])
                kind = (
                    "small" if epsilon <= 1 else "middle" if epsilon == 2 and batches == "fixed" else "large"
                )
                if batches == "drawn" and task == "table":
                    kind = "small"
                gains.setdefault((batches, kind), []).append(gained)
    said = text_of("docs/choosing.md").split("What trained models gained")[1].split("In a fixed order")[0]
    for kind, low, high in (
        (("drawn", "large"), ".7", "4.5"),
        (("drawn", "small"), "0", "2"),
        (("fixed", "large"), "−.1", "+4.3"),
        (("fixed", "small"), "−18.3", "+.2"),
    ):
        assert re.search(rf"{re.escape(low)}[^.]*(?:\(.*\) )?to {re.escape(high)} ?", said), (kind, low, high)
        for shown, found in ((low, min(gains[kind])), (high, max(gains[kind]))):
            places = len(shown.split(".")[1]) if "." in shown else 0
            assert float(shown.replace("−", "-")) == round(found, places), (kind, shown, found)


def test_the_guesses_of_the_page_for_reviewers():
    guesses = r"(\d+) times in 100 at ε = 1, and (\d+) at ε = 4"
    (worst,) = re.findall(guesses, " ".join(text_of("docs/reviewer.md").split()))
    for epsilon, percent in zip((1.0, 4.0), worst, strict=True):
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


def test_the_advised_rate_is_reported_of_all_cells_and_the_clip_norm_by_one_rule():
    pages = {name: text_of(f"docs/{name}.md") for name in ("measured", "choosing", "faq", "clip-norm")}
    record = text_of("benchmarks/records/grid.md").split("### At the advised rate")[1].split("###")[0]
    for row in record.replace("fixed", "fixed order").replace("0.0", ".0").strip().splitlines()[2:]:
        assert row in pages["measured"], row
    (engine,) = of_the_grid("digits", 3, "engine", "fixed", "Adam").values()
    said = f"`PrivacyEngine` reached {engine[0]:.3f} at the advised rate".replace("0.", ".")
    assert said in " ".join(pages.pop("choosing").split())
    for page in pages.values():
        assert "Any clip norm up to the median gradient norm will do, if rate × clip norm is kept" in page
