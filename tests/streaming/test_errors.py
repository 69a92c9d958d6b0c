"""Every estimator under every kind of mechanism: errors of a whole stream are the standard errors it states.

Copies of one statistic in one release are runs of their own: each has noise of its own, of the same law.
"""

import numpy as np
import pytest

import anechoic as an
from anechoic import streaming
from anechoic.participation import MinSep, Single
from anechoic.sampling import External
from anechoic.streaming.joint_release import SharedRelease
from tests.marks import mostly_slow
from tests.streaming.test_stream import NoNoise

KEY = bytes(range(32))
STEPS, RECORDS = 4, 600


def mechanism(strategy, grid_bits=20):
    sampling = External(Single(), 1, steps=STEPS)
    return an.calibrate(strategy, sampling=sampling, epsilon=800.0, delta=1e-6, grid_bits=grid_bits)


PLANNED = {"epsilon": 800.0, "horizon": STEPS}
KINDS = {
    "planned": PLANNED,
    "endless": {"epsilon": 800.0},
    "users": {**PLANNED, "participation": MinSep(2, 2), "per_step": 2},
    "tree": {"mechanism": mechanism(an.strategies.Tree(STEPS))},
    "floats": {"mechanism": mechanism(an.strategies.Identity(STEPS), grid_bits=None)},
    "window": {**PLANNED, "over": streaming.SlidingWindow(3)},
}
RNG = np.random.default_rng(5)
VECTORS = RNG.normal(0.4, 0.2, (RECORDS, 2))
STATISTICS = {
    "count": (streaming.Count, np.zeros(RECORDS)),
    "sum": (lambda: streaming.Sum(1.5, 2), VECTORS),
    "mean": (lambda: streaming.Mean(-1, 2), VECTORS[:, 0]),
    "histogram": (lambda: streaming.Histogram(range(3)), RNG.integers(3, size=RECORDS)),
    "distribution": (lambda: streaming.Distribution([0, 0.3, 0.6, 0.9]), VECTORS[:, 0]),
}
CASES = {f"{name}, {kind}": (name, kind) for name in STATISTICS for kind in KINDS}
QUICK = ["histogram, tree"]


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """All copies have the same records, which are read and added up for the first one."""

    def read(shared, batch):
        records = shared.statistics["0"].read(batch)
        return dict.fromkeys(shared.statistics, records), records.count

    def sums(shared, records, kept):
        one = shared.statistics["0"].total(records["0"], kept, shared.units["0"])
        return np.tile(one, len(shared.statistics))

    monkeypatch.setattr(SharedRelease, "read", read)
    monkeypatch.setattr(SharedRelease, "sums", sums)


@pytest.mark.parametrize("case", mostly_slow(CASES, quick=QUICK))
def test_errors_are_the_standard_errors(case):
    name, kind = CASES[case]
    make, batch = STATISTICS[name]
    ids = [range(RECORDS * t, RECORDS * (t + 1)) for t in range(STEPS)] if kind == "users" else None
    entries = make().decode(np.ones(make().dimension), 1.0, 1.0).value.size
    copies = {str(run): make() for run in range(-(-4000 // entries))}  # 500 runs at least
    seen, silent = (
        kind_of(copies, key=KEY, **KINDS[kind]).steps([batch] * STEPS, unit_ids=ids)
        for kind_of in (streaming.Stream, NoNoise)
    )
    part = "raw" if name in ("distribution", "per bucket") else "value"  # before it is made monotone
    scores = []
    for one, true in zip(seen, silent, strict=True):
        expected, stated = getattr(true["0"], part), true["0"].standard_error
        scores.append([(getattr(one[run], part) - expected) / stated for run in copies])
    runs = np.square(scores).mean(axis=0)  # over the steps: what is left is independent
    assert_mean_is_one(runs.reshape(len(runs), -1).mean(axis=1))
    for entry in runs.reshape(len(runs), -1).T:
        assert_mean_is_one(entry)


def assert_mean_is_one(squares):
    """Up to what so many runs leave open, and 2 % for the linearised errors (1 % of a standard error).

    The strategy is optimised here, so that another processor may draw other noise: a limit without the
    spread of the sample would fail on some.
    """
    left_open = 4.5 * squares.std(ddof=1) / np.sqrt(len(squares))
    assert abs(squares.mean() - 1) < 0.02 + left_open
