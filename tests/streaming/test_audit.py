"""The audit of training runs, put to streams: honest ones pass, seeded faults are refuted."""

from unittest.mock import patch

import numpy as np
import pytest

import anechoic as an
from anechoic import streaming
from anechoic.audit import audit
from anechoic.audit.observation import Observation
from anechoic.participation import MinSep
from anechoic.sampling import External
from anechoic.streaming.ledger import Ledger

STEPS, CANARIES = 12, 400
PARTICIPATION = MinSep(4, 2)
MECHANISM = an.calibrate(
    an.strategies.BandedToeplitz(STEPS, [1.0, 0.6, 0.4]),
    sampling=External(PARTICIPATION, 1, steps=STEPS),
    noise_multiplier=1 / 3,
    delta=1e-5,
    grid_bits=20,
)
KEYS = (bytes(range(32)), bytes(range(1, 33)))


def observed(key=KEYS[0], reopen=None):
    """Every canary has a category of its own, and half of them feed it twice in every step."""
    put_in = np.arange(CANARIES) % 2 == 0
    feed = np.repeat(np.flatnonzero(put_in), 2)
    promise = {"mechanism": MECHANISM, "participation": PARTICIPATION, "key": key, "state": reopen}
    stream = streaming.Stream(streaming.Histogram(range(CANARIES)), **promise)
    for step in range(STEPS):
        if reopen is not None and step == 7:
            stream.close()
            stream = streaming.Stream(streaming.Histogram(range(CANARIES)), **promise)
        stream.update(feed, unit_ids=feed)
        stream.release()
    return np.array([stream._row(t) for t in range(STEPS)]) / 2.0**20, put_in


def refuted(rows, put_in, steps=(0, 4)):
    """Findings of the audit that are violated, for canaries that took part in these steps."""
    part = np.zeros(rows.shape, bool)
    part[list(steps)] = True
    report = audit(MECHANISM, Observation(rows, part, put_in.astype(float)))
    return [finding.name for finding in report.findings if finding.violated]


@pytest.mark.slow
def test_an_honest_stream_passes(tmp_path, monkeypatch):
    # the audit may be wrong in one of twenty runs: this repeats one of them
    monkeypatch.setattr("anechoic.runs.digests.new_salt", bytes)
    assert refuted(*observed()) == []
    assert refuted(*observed(reopen=tmp_path / "run.db")) == []


def test_a_unit_that_counts_twice_in_a_step_is_found():
    made = Ledger.__init__

    def lax(self, participation, per_step, key, accounts):
        made(self, participation, 2, key, accounts)

    with patch.object(Ledger, "__init__", lax):
        assert "canary fit" in refuted(*observed())


def test_a_contribution_bound_that_is_off_by_one_is_found():
    made = Ledger.__init__

    def lax(self, participation, per_step, key, accounts):
        made(self, MinSep(4, 3), per_step, key, accounts)

    with patch.object(Ledger, "__init__", lax):
        rows, put_in = observed()
    assert "participation" in refuted(rows, put_in, steps=(0, 4, 8))
    assert refuted(rows, put_in, steps=(0, 4))  # and by an auditor who does not know of the third


def test_a_restart_that_reuses_a_row_is_found(tmp_path):

    with patch("anechoic.mechanism.rows.NoiseRows.restore", lambda *_: None):
        assert "covariance" in refuted(*observed(reopen=tmp_path / "run.db"))


def test_two_streams_that_each_spend_all_of_it_are_found():
    (one, put_in), (other, _) = observed(KEYS[0]), observed(KEYS[1])
    assert "canary" in refuted((one + other) / 2, put_in)
