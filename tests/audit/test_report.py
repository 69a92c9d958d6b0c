"""Audits of the noise stream, and what a report says."""

import json
from dataclasses import replace

import numpy as np
import pytest

from anechoic.audit import Observation, audit, audit_mechanism
from anechoic.mechanism.calibrate import calibrate
from anechoic.sampling import CyclicPoisson, FixedOrder
from anechoic.strategies import BandedToeplitz, Toeplitz
from anechoic.workloads import prefix_sum
from tests.audit.faults import STEPS
from tests.marks import slow

OPTIONS = {"canaries": 400, "key": bytes(32), "seed": 0}


@pytest.mark.parametrize(
    ("adjacency", "sampled"),
    [("replace_one", False), *slow(("zero_out", True), ("replace_one", True), ("zero_out", False))],
)
def test_replacing_counts_twice(adjacency, sampled):
    strategy = BandedToeplitz(STEPS, [1.0, 0.5])
    sampling = CyclicPoisson(400, 100, 2, STEPS) if sampled else FixedOrder(400, 100, steps=STEPS)
    mechanism = calibrate(strategy, sampling=sampling, epsilon=8.0, delta=1e-5, adjacency=adjacency)
    report = audit_mechanism(mechanism, **{**OPTIONS, "canaries": 4000})
    assert not report.violated, str(report)
    if not sampled:
        assert report.finding("canary fit").found > 0.93 * mechanism.gdp()
    short = audit_mechanism(replace(mechanism, noise_std=mechanism.noise_std / 2), **OPTIONS)
    assert short.finding("canary").claimed == pytest.approx(2 * mechanism.gdp())


def lack(mechanism, factor, *, canaries=2000, rng=None):
    """An observation of `mechanism` with noise too small by `factor`."""
    rng = np.random.default_rng(0) if rng is None else rng
    n, strategy = mechanism.steps, mechanism.strategy
    pattern = np.repeat((np.arange(n) % 4 == 0)[:, None], canaries, axis=1)
    contribution = (rng.permutation(canaries) < canaries // 2) * 1.0
    noise = strategy.solve(rng.standard_normal((n, canaries))) * mechanism.noise_std / factor
    return Observation(noise + pattern * contribution, pattern, contribution)


def root_mechanism(mu=3.0):
    strategy = Toeplitz.square_root(prefix_sum(STEPS))
    sampling = FixedOrder(400, 100, steps=STEPS)
    return calibrate(strategy, sampling=sampling, noise_multiplier=1 / mu, delta=1e-5)


def test_the_number_of_canaries_that_is_asked_for_suffices():
    mechanism = root_mechanism()
    few = audit(mechanism, lack(mechanism, 1.0, canaries=200))
    assert few.finding("canary fit").power < 0.95
    enough = audit(mechanism, lack(mechanism, 1.0, canaries=few.canaries_needed))
    assert enough.finding("canary fit").power == pytest.approx(0.95, abs=0.02)


def test_text_and_json():
    mechanism = root_mechanism()
    good = audit(mechanism, lack(mechanism, 1.0))
    bad = audit(mechanism, lack(mechanism, 2.0), subject="a broken run")
    assert "no violation found, which is no proof" in good.verdict
    assert "covariance 0.999" in good.verdict
    assert bad.verdict.startswith("VIOLATED: the claim is refuted at 95% confidence by canary, canary fit")
    text = str(bad)
    assert text.startswith("audit of a broken run\n")
    assert "VIOLATED" in text
    assert "- canaries are orthogonal" in text
    for name in ("participation", "canary fit", "epsilon at large delta", "covariance"):
        assert name in text
    record = json.loads(bad.to_json())
    assert record["violated"] is True
    assert record["fingerprint"] == mechanism.fingerprint
    assert record["findings"][1]["found"] == bad.finding("canary").found
    with pytest.raises(ValueError, match="no finding 'luck': there are participation"):
        bad.finding("luck")


def test_what_is_refused():
    mechanism = root_mechanism()
    seen = lack(mechanism, 1.0, canaries=40)
    short = Observation(seen.rows[:-1], seen.participation[:-1], seen.contribution)
    with pytest.raises(ValueError, match="23 rows were observed, but n=24"):
        audit(mechanism, short)
    few = Observation(seen.rows, seen.participation, np.repeat([1.0, 0.0], [3, 37]))
    with pytest.raises(ValueError, match="3 canaries put in and 37 left out"):
        audit(mechanism, few)
    sampled = calibrate(
        BandedToeplitz(STEPS, [1.0, 0.5]), sampling=CyclicPoisson(400, 50, 4, STEPS), epsilon=8.0, delta=1e-5
    )
    with pytest.raises(ValueError, match="give possible="):
        audit(sampled, seen)
    with pytest.raises(ValueError, match="canaries=4 must be at least 16"):
        audit_mechanism(mechanism, canaries=4)
