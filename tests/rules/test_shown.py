"""What comes of the blocks of README.md and of two guides, and the numbers that two pages state."""

import json
import math
import re
import runpy
from importlib import import_module
from itertools import product
from types import SimpleNamespace

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


@pytest.fixture(scope="module")
def grid():
    """The record of benchmarks/grid.py: cells, tables, and (mean, standard error) of an arm by rate."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in (ROOT, ROOT / "benchmarks"):
            patch.syspath_prepend(str(folder))
        cells, table = (import_module(f"adaptive.{name}") for name in ("cells", "table"))
    results = cells.Results(ROOT / "benchmarks/records/grid.jsonl", ROOT)

    def of(task, epsilon, arm, order, optimizer="momentum"):
        schedule = "constant" if optimizer == "Adam" else "cooldown"
        found = results.of(cells.Cell(task, epsilon, order, optimizer, schedule, arm))
        return {rate: (values.mean(), table.error(values)) for rate, values in found.items()}

    return SimpleNamespace(of=of, tables=lambda: table.tables(results), tasks=cells.TASKS)


def test_the_tables_of_the_grid_are_those_of_its_record(grid):
    assert text_of("benchmarks/records/grid.md") == grid.tables() + "\n"


def test_the_first_table_of_the_readme_is_that_of_the_grid(grid):
    drawn, fixed = ("DP-SGD", "independent", "default"), ("independent", "default")
    (silent,) = [max(grid.of("mlp", 0.0, "no noise", "fixed").values())[0]]
    for arms, batches, epsilons in ((drawn, "drawn", (0.5, 2, 8)), (fixed, "fixed", (0.5, 2))):
        for epsilon in epsilons:
            best = [max(grid.of("mlp", epsilon, arm, batches).values()) for arm in arms]
            shown = " | ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in best)
            table = text_of("README.md").replace("*", "")
            assert f"| {shown} | {silent:.3f} |" in table, (batches, epsilon, shown)
    arms = [max(grid.of("mlp", 2, arm, "drawn").values()) for arm in ("default", "DP-SGD")]
    ours, theirs = (f"{mean:.3f} ± {error:.3f}" for mean, error in arms)
    for page in ("docs/index.md", "paper.md"):
        assert f"an accuracy of {ours} and DP-SGD {theirs}" in " ".join(text_of(page).split())


def test_the_cells_on_the_page_of_measurements_are_those_of_the_grid(grid):
    page = text_of("docs/measured.md").split("## Which optimiser gains what?")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+), ([\d.]+) \| (Adam|momentum) \| (.*) \|$", page, re.MULTILINE)
    assert {row[0] for row in rows} == {*grid.tasks}
    for task, epsilon, optimizer, cells in rows:
        arms = [("DP-SGD", "drawn"), ("independent", "fixed"), ("default", "fixed"), ("default", "drawn")]
        best = [max(grid.of(task, float(epsilon), *arm, optimizer).values(), default=None) for arm in arms]
        best += [max(grid.of(task, 0.0, "no noise", "fixed", optimizer).values())]
        made = [f"{one[0]:.3f} ({1000 * one[1]:.0f})"[1:] if one else "cannot be drawn" for one in best]
        if task == "flights":
            made[0] = f"not permitted ({made[0].split()[0]})"
        assert cells == " | ".join(made), (task, epsilon)


RATES = (2**-8, 2**-6, 2**-5, 2**-4, 2**-3, 2**-2)  # of the page


def test_the_table_of_adam_is_that_of_the_grid(grid):
    arms = ("DP-SGD", "drawn"), ("independent", "drawn"), ("default", "drawn")
    rows = re.findall(r"^\| (?:drawn|fixed order) \| .*", text_of("docs/choosing.md"), re.MULTILINE)
    assert len(rows) == 5
    for row, (arm, batches) in zip(
        rows, (*arms, ("independent", "fixed"), ("default", "fixed")), strict=True
    ):
        means = {rate: mean for rate, (mean, _) in grid.of("digits", 3, arm, batches, "Adam").items()}
        for rate, cell in zip(RATES, row.split("|")[3:-1], strict=True):
            assert cell.strip(" *") == (f"{means[rate]:.3f}"[1:] if rate in means else ""), (row, rate)
        most = max(mean for rate, mean in means.items() if rate in RATES)
        assert f"**{most:.3f}**".replace("0.", ".") in row


def test_what_may_be_expected_is_what_the_grid_has(grid):
    """Points of the plan above DP-SGD, both at their best rates, where DP-SGD is permitted."""
    gains = {}
    for task, optimizer, batches, epsilon in product(
        {*grid.tasks} - {"flights"}, ("momentum", "Adam"), ("drawn", "fixed"), (0.3, 0.5, 1, 2, 3, 8)
    ):
        ours, theirs = (
            grid.of(task, epsilon, arm, order, optimizer)
            for arm, order in (("default", batches), ("DP-SGD", "drawn"))
        )
        if ours and theirs:
            gained = 100 * (max(ours.values())[0] - max(theirs.values())[0])
            small = epsilon <= 1 or (batches, task) == ("drawn", "table")
            gains.setdefault((batches, "small" if small else "large"), []).append(gained)
    said = text_of("docs/choosing.md").split("What trained models gained")[1].split("In a fixed order")[0]
    shown = re.findall(r"([−+]?[\d.]*\d)(?: \([^)]*\))? to ([−+]?[\d.]*\d) points", said)
    kinds = product(("drawn", "fixed"), ("large", "small"))
    for kind, ends in zip(kinds, shown, strict=True):
        for end, found in zip(ends, (min(gains[kind]), max(gains[kind])), strict=True):
            places = len(end.split(".")[1]) if "." in end else 0
            assert float(end.replace("−", "-")) == round(found, places), (kind, end, found)
    low, high = shown[0]
    assert f"{low} to {high} points above DP-SGD" in " ".join(text_of("README.md").split())


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


def test_pages_have_the_summaries_of_the_grid_and_one_rule_for_the_clip_norm(grid):
    pages = {name: text_of(f"docs/{name}.md") for name in ("measured", "choosing", "faq", "clip-norm")}
    rows = r"^\| (?:drawn|fixed order|\w+, \d \| DP-SGD|\w+, \d \| plan).*"
    found = re.findall(rows, grid.tables().split("### Above and below")[1], re.MULTILINE)
    assert len(found) == 7 + 2 + 6
    for row in found:
        assert row in pages["measured"], row
    (engine,) = grid.of("digits", 3, "engine", "fixed", "Adam").values()
    said = f"`PrivacyEngine` reached {engine[0]:.3f} at the advised rate".replace("0.", ".")
    assert said in " ".join(pages.pop("choosing").split())
    for page in pages.values():
        assert "Any clip norm up to the median gradient norm will do, if rate × clip norm is kept" in page
