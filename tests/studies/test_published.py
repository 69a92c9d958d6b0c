"""Figures and tables of the papers: what they state, and what is written."""

import csv

import numpy as np
import pytest
from scipy.stats import norm

from anechoic.strategies import endless
from anechoic.theory.ftrl import contraction_rho
from anechoic.theory.gradient_descent import named_factorizations
from anechoic.theory.optimal import asymptotic_loss
from anechoic.theory.problems import LinearRegression
from studies.__main__ import main
from studies.published import (
    EXHIBITS,
    TRAINED,
    TRAINED_ON_TEXT,
    Curve,
    Exhibit,
    Panel,
    correlated,
    descent,
    exhibit,
    ftrl,
)
from studies.published.exhibit import _columns, slope
from studies.published.ftrl import huber


def test_slopes_of_figure_2(monkeypatch):
    """Paper 000, caption of Figure 2: 1.00, 0.18, 0.94, 2.03, 1.27."""
    monkeypatch.setattr(correlated, "RUNS", 0)  # lines alone
    against_d, against_effective, against_rate = exhibit("000-2").panels
    found = [
        slope(curve.x, curve.y)
        for curve in (
            against_d.curves[0],
            against_effective.curves[0],
            against_effective.curves[1],
            against_rate.curves[1],
            against_rate.curves[0],
        )
    ]
    assert found == pytest.approx([1.00, 0.18, 0.94, 2.03, 1.27], abs=0.05)
    for panel in (against_d, against_effective, against_rate):
        assert np.all(panel.curves[2].y <= panel.curves[1].y)


@pytest.mark.parametrize("damped", [False, True])
def test_simulations_of_figure_2_have_the_exact_expectation(damped, monkeypatch):
    monkeypatch.setattr(correlated, "STEPS", 3000)
    monkeypatch.setattr(correlated, "BEFORE", 1000)
    monkeypatch.setattr(correlated, "RUNS", 30)
    problem = LinearRegression([1.0, 0.5, 0.2], 0.05)
    noise = endless.damped(0.01) if damped else correlated.PLAIN
    mean, error = correlated.simulated(problem, noise, seed=1)
    exact = asymptotic_loss(problem, noise) ** 2
    assert abs(mean - exact) < 3 * error < 0.15 * exact


@pytest.mark.slow
def test_table_2_says_what_holds():
    header, *rows = exhibit("000-table-2").table
    over = {row[0]: row[-1] for row in rows}
    assert header[-1] == "over the best"
    assert over["best"] == "1.000000" and over["BLT, 6 buffers"] < "1.01"
    assert float(over["ν = ημ"]) == pytest.approx(1.0897, abs=1e-4)


@pytest.mark.slow
def test_chess_pgd_diverges_and_plain_does_not(monkeypatch):
    monkeypatch.setattr(descent, "DRAWS", 3)
    plain, _, chess, *_ = exhibit("004-4").panels[0].curves
    assert plain.y[2000] == pytest.approx(plain.y[4000], rel=1e-3)
    assert chess.y[4000] == pytest.approx(2 * chess.y[2000], rel=0.01)


@pytest.mark.parametrize("name", ["PGD", "tree, online"])
def test_drawn_runs_have_the_exact_expectation(name, monkeypatch):
    """Root mean square over twelve steps of the distance in standard errors; a rate 20 % off is seen."""
    monkeypatch.setattr(descent, "DRAWS", 300)
    strategy = named_factorizations(33)[name]
    runs = descent.drawn(strategy, 0.05, name, seed=1, sigma=60.0)
    exact, wrong = (Curve(name, np.arange(34.0), descent.norms(strategy, r, 60.0)) for r in (0.05, 0.06))
    assert descent.compared(exact, runs) < 2.0 < descent.compared(wrong, runs)


def test_directions_without_data_cost_nothing_under_correlated_noise():
    independent, rule, _, best = exhibit("000-directions").panels[0].curves
    assert independent.y.max() / independent.y.min() < 1.05
    assert rule.y[0] / rule.y[-1] > 10 and best.y[0] / best.y[-1] > 10


def test_runs_of_the_regret_exhibit_are_below_the_theorems(monkeypatch):
    monkeypatch.setattr(ftrl, "RUNS", 300)
    average, last, falling = exhibit("001-regret").panels
    for panel in (average, last, falling):
        stated, runs = panel.curves
        assert np.all(runs.y <= stated.y + 3 * runs.error)
    assert slope(average.curves[1].x, average.curves[1].y) == pytest.approx(-0.5, abs=0.05)  # and it is tight
    assert np.all(average.curves[1].y > 0.8 * average.curves[0].y)


def test_table_1_of_paper_001():
    header, *rows = exhibit("001-table-1").table
    assert header[3].startswith("n = 10,000, d = 10,000")
    printed, right = rows[-2:]
    assert printed[3] == "1" and right[3] == "0.0002"


@pytest.mark.slow
def test_lq_noise_is_beyond_the_claim():
    one, every = exhibit("001-lq").panels
    claimed, crude, exact = (curve.y for curve in one.curves)
    assert np.all(claimed * 10 < exact) and np.all(exact < crude)
    assert np.all(np.diff(every.curves[0].y) < 0)


def test_huber_by_quadrature():
    """Within |x| < 1 Huber is the quadratic, whose states are Gaussian of known rho."""
    seen, allowed = huber()
    assert allowed == pytest.approx(0.5205, abs=1e-3)  # L = 2: clip(w, -1, 1) plus or minus 1
    assert seen > 1.6 * allowed
    mu = np.sqrt(2 * contraction_rho(steps=400, fade=0.95, sensitivity=2.0, noise_std=0.2))
    assert seen == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-4)


MADE = Exhibit(
    "x-1",
    "A title",
    "A paper, Figure 1",
    (Panel("left", "x", "y", (Curve("line", np.array([1.0, 2.0]), np.array([3.0, 0.1])),), "xy"),),
    remarks=("Remark.",),
)


@pytest.mark.parametrize(
    ("labels", "across", "columns"),
    [
        (["a", "b"], 1, 2),
        (["x" * 31, "y"], 1, 1),
        (["x" * 33] * 7, 2, 2),
        (["x" * 90] * 3, 1, 1),
        (["a"] * 9, 3, 4),
    ],
)
def test_legends_are_no_wider_than_their_panels(labels, across, columns):
    assert _columns(labels, across) == columns


def test_what_is_written(tmp_path):
    files = MADE.write(tmp_path / "new", draw=False)
    assert [file.name for file in files] == ["x-1.csv"]
    with files[0].open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["panel", "curve", "x", "y"], ["left", "line", "1", "3"], ["left", "line", "2", "0.1"]]
    assert MADE.text().startswith("# A title") and "Remark." in MADE.text()


@pytest.mark.slow
def test_drawings_are_reproduced(tmp_path):
    drawn = MADE.write(tmp_path)[1]
    before = drawn.read_bytes()
    assert before.startswith(b"<?xml")
    assert MADE.write(tmp_path)[1].read_bytes() == before


def test_the_command_lists_and_writes(tmp_path, capsys):
    assert main(["papers", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXHIBITS | TRAINED | TRAINED_ON_TEXT)
    assert main(["papers", "000-table-3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "000-table-3.csv" in printed and "| ν-DP-FTRL |" in printed
    assert main(["papers", "000-9"]) == 2
    assert "'000-9' is unknown" in capsys.readouterr().err
    assert main(["papers", "004-3", "--out", str(tmp_path)]) == 2
    assert "give --data-dir" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_everything_is_regenerated(name, tmp_path):
    made = exhibit(name)
    assert made.name == name
    assert all(file.stat().st_size > 100 for file in made.write(tmp_path))
