"""The demo trains, chooses rates by the mean, and its report says what it is."""

import json
import re

import pytest

for needed in ("torch", "rich", "matplotlib", "jinja2"):
    pytest.importorskip(needed)

import anechoic as an  # noqa: E402
from anechoic import cli  # noqa: E402
from anechoic.demo import late_flights  # noqa: E402
from anechoic.demo.late_flights import best, by_rate, compared, next_rate  # noqa: E402
from anechoic.demo.training import Arm, Run  # noqa: E402
from anechoic.mechanism.mechanism import Mechanism  # noqa: E402
from anechoic.mechanism.statement_text import KEYS  # noqa: E402


def scores(arm, table):
    """Scores from {learning rate: scores by seed}."""
    return {Run(arm, rate, seed): score for rate, found in table.items() for seed, score in enumerate(found)}


def test_an_arm_takes_the_rate_of_the_largest_mean_and_is_followed_beyond_its_ends():
    arm = Arm("planned", 1.0)
    found = scores(arm, {0.5: [0.7, 0.7], 1.0: [0.9, 0.2], 0.25: [0.5, 0.5]})
    top = best(arm, found)
    assert list(by_rate(arm, found)) == [0.25, 0.5, 1.0] and next_rate(arm, found) is None
    assert (top["rate"], top["rates"], top["mean"], top["scores"]) == (0.5, 3, 0.7, [0.7, 0.7])
    assert next_rate(arm, scores(arm, {0.25: [2], 0.5: [1]})) == 0.125
    assert next_rate(arm, scores(arm, {1.0: [1], 2.0: [2]})) == 4.0
    assert next_rate(arm, scores(arm, {64.0: [1], 128.0: [2]})) is None  # far enough


def test_gains_are_paired_by_seed_and_the_choice_of_a_rate_has_its_price():
    sampling = an.sampling.FixedOrder(examples=40, batch_size=10, epochs=1)
    given = an.calibrate(an.strategies.Identity(4), sampling=sampling, epsilon=50.0, delta=1e-6)
    arms = [Arm(kind, 50.0, given.to_json()) for kind in ("independent", "planned", "drawn")]
    found = scores(arms[0], {0.5: [0.6, 0.7], 1.0: [0.5, 0.5]})
    found |= scores(arms[1], {0.5: [0.7, 0.8], 1.0: [0.5, 0.5], 2.0: [0.5, 0.5]})
    found |= scores(arms[2], {rate: [rate, rate] for rate in (0.5, 0.9, 0.6, 0.7)})  # of no guarantee
    row = compared(arms, found, 50.0)
    assert row["drawn"]["mean"] == pytest.approx(0.9)
    assert row["gain"] == pytest.approx(0.1) and row["gain_error"] == pytest.approx(0.0, abs=1e-12)
    assert row["chosen"] == pytest.approx(an.select(given, mean=3, score_on="public").epsilon())


def test_the_demo_on_a_slice_writes_a_report_that_loads_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(late_flights, "QUICK_FLIGHTS", 5_120)
    monkeypatch.setattr(late_flights, "QUICK_RATES", (1.0,))
    monkeypatch.setattr(late_flights, "EPSILONS", (0.3,))
    out = tmp_path / "a & b"
    assert cli.main(["demo", "--quick", "--seeds", "1", "--jobs", "1", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "At ε = 0.3, correlated noise reaches AUC" in shown and "what anechoic.select needs" in shown
    record = json.loads((out / "results.json").read_text())
    assert record["steps"] == 20 and len(record["runs"]) == 5
    (row,) = record["rows"]
    assert row["chosen"] <= 0.3  # of one rate none is chosen
    html = (out / "report.html").read_text()
    assert html.startswith("<!DOCTYPE html>") and html.count("<img") == 2 and "<script" not in html
    assert not re.search(r"https?:", html)
    assert all(link == "data:" for link in re.findall(r'(?:src|href)="(.{5})', html))
    # the keys of a study are no secret, and noise in a fixed order is not sampled DP-SGD
    assert KEYS not in html and "keys follow from the seeds: in this demo" in html
    assert "none of this is DP-SGD" in " ".join(html.split())
    # what DP-SGD would need is a line and a column, and no mechanism that anybody could take for a guarantee
    assert (
        "DP-SGD, if drawn" in shown and "In time order they cannot be" in html and row["drawn"]["rates"] == 1
    )
    assert "DP-SGD, if drawn" in (out / "flights.svg").read_text()
    assert sorted(path.name for path in out.glob("*.json")) == [
        "independent-fixed-eps0.3.json",
        "planned-fixed-eps0.3.json",
        "results.json",
    ]
    assert "a &amp; b" in html and "</svg>" in (out / "flights.svg").read_text()
    mechanism = Mechanism.from_json((out / "planned-fixed-eps0.3.json").read_text())
    assert mechanism.epsilon() <= 0.3 and mechanism.fingerprint in html
