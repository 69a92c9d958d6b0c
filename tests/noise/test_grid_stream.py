"""Streams on a grid: the same integers whole or in slices, in NumPy and torch, saved or not."""

from fractions import Fraction

import numpy as np
import pytest

import anechoic as an
from anechoic import strategies as s
from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError, MismatchError
from anechoic.noise import NoiseStream, gaussian, torch_arrays
from anechoic.noise.rounding import base, scalar_rows, split_sums, windowed
from anechoic.noise.rounding.exact import nearest
from tests.marks import each_once, every_other
from tests.noise.streams import KEY
from tests.noise.test_rounding import KINDS, by_definition
from tests.zoo import STRATEGIES

GRID = 2.0**-30


def emit(stream, count, state=None):
    state, rows = stream.init() if state is None else state, []
    for _ in range(count):
        row, state = stream.next(state)
        rows.append(np.asarray(row).copy())
    return np.array(rows), state


def stream_of(name, dimension=40, **options):
    return NoiseStream(KINDS[name], dimension, std=3.0, grid=GRID, key=KEY, **options)


@pytest.mark.parametrize(
    "name",
    [
        "banded-mixed",
        "inverse-mixed",
        "blt-4",
        "recurrent",
        "tree-wide",
        "normalised(full-tree-cut)",
        "restarted(normalised(blt-4))",
        "dense",
    ],
)
def test_rows_are_those_of_the_exact_variates(name):
    strategy, m = STRATEGIES[name], 5
    stream = NoiseStream(strategy, m, std=3.0, grid=GRID, key=KEY)
    rows, _ = emit(stream, strategy.n)
    assert rows.dtype == np.int64
    system = strategy.recurrence()
    for i in range(m):
        z = [Fraction(gaussian.FreshRow(KEY, t).enclosure(i, 300)[0], 2**300) for t in range(strategy.n)]
        for t in range(strategy.n):
            assert rows[t, i] == nearest(by_definition(system, 3.0 * 2.0**30, z[: t + 1], rows[:t, i]))


@pytest.mark.parametrize("name", every_other(KINDS))
@pytest.mark.few(4)
def test_slices_backends_and_threads_leave_no_trace(name):
    whole, _ = emit(stream_of(name), 40)
    sliced = [emit(stream_of(name, offset=a, length=b - a), 40)[0] for a, b in ((0, 7), (7, 8), (8, 40))]
    assert np.array_equal(np.concatenate(sliced, axis=1), whole)
    assert np.array_equal(emit(stream_of(name, backend="torch"), 40)[0], whole)


@pytest.mark.parametrize("name", ["banded", "long"])
@pytest.mark.parametrize("threads", ["2", "5"])
def test_threads_leave_no_trace_in_long_rows(threads, name, monkeypatch):
    monkeypatch.setattr(gaussian, "BLOCK", 1000)
    monkeypatch.setattr(base, "ALONE", 2000)  # several products in a block
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    expected, _ = emit(stream_of(name, 5500), 6)
    monkeypatch.setattr(base, "ALONE", 2**18)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert np.array_equal(emit(stream_of(name, 5500), 6)[0], expected)


def test_a_saved_state_belongs_to_its_grid():
    saved = emit(stream_of("blt"), 17)[1].state_dict()
    for other, word in (({"grid": None}, "kind"), ({"grid": 2 * GRID}, "std")):
        with pytest.raises(MismatchError, match=word):
            NoiseStream(KINDS["blt"], 40, std=3.0, key=KEY, **other).restore(saved)


def test_long_windows_are_passed_over_once_in_several_steps(monkeypatch):
    made = []
    real = windowed.SumsAhead
    monkeypatch.setattr(
        windowed,
        "SumsAhead",
        lambda first, rows, weights, since: real(
            first, rows, lambda: (made.append(weights()), made[-1])[1], since
        ),
    )
    emit(stream_of("long"), 40)
    assert [len(found) for found in made] == 13 * [3]  # steps 1 to 39
    made.clear()
    emit(stream_of("long-scaled-restarted"), 40)
    assert [len(found) for found in made] == [3, 3, 3, 3, 3, 1] * 2 + [3, 2]
    made.clear()
    emit(stream_of("banded"), 40)
    assert not made


def test_out_is_written_into():
    stream = stream_of("banded")
    out = np.zeros(40, np.int64)
    row, _ = stream.next(stream.init(), out=out)
    assert row is out and out.any()
    with pytest.raises(ValueError, match="out must"):
        stream.next(stream.init(), out=np.zeros(40))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="dtype"):
        stream_of("banded", dtype=np.float32)
    with pytest.raises(ValueError, match="memory"):
        stream_of("banded", memory="regenerate")
    with pytest.raises(GuaranteeError, match="fades faster"):
        NoiseStream(s.BLT(2**62, [0.2], [1 - 2.0**-40]), 10**6, grid=1.0)


def test_a_mechanism_releases_integers():
    """A NumPy user's loop: to_grid, a sum, a row, a release."""
    sampling = an.sampling.FixedOrder(examples=6, batch_size=3, steps=4)
    mechanism = an.calibrate(
        s.BandedToeplitz(4, [1.0, 0.5]), sampling=sampling, epsilon=1, delta=1e-6, clip_norm=0.5, grid_bits=20
    )
    gradients = np.random.default_rng(0).standard_normal((3, 5))
    total = sum(mechanism.grid.to_grid(g) for g in gradients)
    stream = mechanism.stream(5, key=KEY)
    row, _ = stream.next(stream.init())
    release = mechanism.grid.release(total, row)
    clipped = gradients * np.minimum(1, 0.5 / np.linalg.norm(gradients, axis=1))[:, None]
    noise = mechanism.noise_std * 0.5 * stream.fresh(0)
    assert np.abs(release - (clipped.sum(0) + noise) / 3).max() < 1e-6
    assert np.array_equal(release * 3 / (0.5 * 2.0**-20), total + row)
    with pytest.raises(MismatchError, match="integers"):
        mechanism.grid.release(total.astype(float), row)


NARROW = {
    "blt": s.BLT(30, [0.3, 0.1], [0.95, 0.4]),
    "blt of one buffer": s.BLT(17, [0.5], [0.9]),
    "blt of one step": s.BLT(1, [0.5], [0.9]),
    "restarted": s.Restarted(s.BLT(30, [0.3, 0.1], [0.95, 0.4]), 7),
    "normalised": s.ColumnNormalized(s.BLT(30, [0.3, 0.1], [0.95, 0.4])),
    "banded": s.BandedToeplitz(30, [1.0, 0.5, 0.2]),
}


@pytest.mark.parametrize("decided", ["in float64", "exactly"])
@pytest.mark.parametrize(("name", "offset", "length"), each_once(NARROW, [(0, 1), (3, 2), (1, 9)]))
@pytest.mark.few(8)
def test_several_rows_are_those_made_one_by_one(name, offset, length, decided, monkeypatch):
    strategy = NARROW[name]
    options = {"std": 3.0, "grid": GRID, "key": KEY, "offset": offset, "length": length}
    stream = NoiseStream(strategy, 12, **options)
    expected, last = emit(stream, strategy.n)
    if decided == "exactly":  # every entry counts as near to a half-integer
        monkeypatch.setattr(scalar_rows, "error_bound", lambda *_: 0.5)
    monkeypatch.setattr(torch_arrays, "TOGETHER", 5)
    state, found = stream.init(), []
    while state.step < strategy.n:
        made, state = stream.several(state, min(8, strategy.n - state.step))
        found += made
    assert np.array_equal(np.array(found), expected)
    assert state.state_dict()["rows"].tobytes() == last.state_dict()["rows"].tobytes()


def test_more_rows_than_are_left_leave_the_state_as_it_is():
    stream = NoiseStream(s.BLT(5, [0.3], [0.9]), 1, grid=GRID, key=KEY)
    _, state = stream.several(stream.init(), 3)
    with pytest.raises(HorizonError, match="row 5 would not be covered"):
        stream.several(state, 3)
    again = stream.several(state, 2)[1]
    with pytest.raises(DesynchronizedError):
        stream.several(state, 1)
    assert again.step == 5


def test_memory_that_grew_is_refused_in_narrow_rows_too(monkeypatch):
    monkeypatch.setattr(split_sums, "ROOM", 1e-3)
    stream = NoiseStream(s.BLT(9, [0.3], [0.9]), 1, std=3.0, grid=GRID, key=KEY)
    with pytest.raises(GuaranteeError, match="memory of the noise has grown"):
        stream.several(stream.init(), 9)
