"""Streams without memory: fresh rows of earlier steps are made from the key again."""

import tracemalloc

import numpy as np
import pytest

from anechoic.errors import CheckpointError, HorizonError, MismatchError
from anechoic.noise import NoiseStream
from anechoic.noise.rounding import base
from anechoic.strategies import BLT, BandedInverse, ColumnNormalized, Identity, Restarted, Tree
from anechoic.workloads import prefix_sum
from tests.marks import each_pair, in_turn
from tests.noise.streams import BACKENDS, KEY, emit, make_stream
from tests.zoo import STRATEGIES

SIGNED = BandedInverse(11, [1.3, -0.6, 0.0, 0.2, -0.1])
DENSE = STRATEGIES["dense"]
WRAPPED = (ColumnNormalized(SIGNED), Restarted(SIGNED, 2, 19))


@pytest.mark.parametrize(
    ("strategy", "dimension", "precision", "backend"),
    each_pair([SIGNED, *WRAPPED], [1, 7, 16, 33, 3 * 64 + 5], ["float32", "float64"], BACKENDS),
)
def test_rows_differ_from_stored_ones_by_rounding(strategy, dimension, precision, backend, monkeypatch):
    monkeypatch.setattr("anechoic.noise.gaussian.BLOCK", 64)
    options = {"precision": precision, "key": bytes(32), "std": 2.0}
    stored, _ = emit(make_stream(strategy, dimension, backend, **options))
    stream = make_stream(strategy, dimension, backend, memory="regenerate", **options)
    made, state = emit(stream)
    tolerance = 1e-14 if precision == "float64" else 2e-6
    np.testing.assert_allclose(made, stored, rtol=0, atol=tolerance * np.abs(stored).max())
    other, _ = emit(
        make_stream(strategy, dimension, backend, memory="regenerate", precision=precision, std=2.0)
    )
    assert not (other == made).any()  # another key
    with pytest.raises(HorizonError):
        stream.next(state)


def test_neither_way_resumes_the_other():
    stored, made = (make_stream(SIGNED, 5, "numpy", memory=memory) for memory in ("store", "regenerate"))
    _, state = emit(stored, count=3)
    with pytest.raises(MismatchError, match="kind='MovingAverage', but"):
        made.restore(state.state_dict())
    _, state = emit(made, count=3)
    with pytest.raises(MismatchError, match="regenerated"):
        stored.restore(state.state_dict())
    broken = state.state_dict() | {"rows": np.zeros((2, 5))}
    with pytest.raises(CheckpointError, match="damaged"):
        made.restore(broken)


# On a grid


@pytest.mark.parametrize("cipher", ["AES-256", "ChaCha20"])
@pytest.mark.parametrize(
    "strategy",
    [
        STRATEGIES["output"],
        STRATEGIES["inverse-mixed"],
        ColumnNormalized(STRATEGIES["inverse-mixed"]),
        Restarted(STRATEGIES["output"], 3, 20),
        BandedInverse.square_root(prefix_sum(40), 12),  # a window of which sums are made ahead
    ],
)
def test_integers_made_again_are_those_of_the_stored_way(strategy, cipher):
    options = {"std": 3.0, "grid": 2.0**-30, "key": KEY, "cipher": cipher}
    expected, _ = emit(NoiseStream(strategy, 900, **options))
    stream = NoiseStream(strategy, 900, memory="regenerate", **options)
    found, state = emit(stream)
    assert found.tobytes() == expected.tobytes()
    assert stream.memory_bytes == 0 and state.state_dict()["rows"].shape[0] == 0
    part = NoiseStream(strategy, 900, memory="regenerate", offset=17, length=600, **options)
    state = part.restore(emit(part, count=4)[1].state_dict())
    assert emit(part, state)[0].tobytes() == expected[4:, 17:617].tobytes()


def test_what_float64_leaves_open_is_decided_from_the_keys(monkeypatch):
    options = {"std": 3.0, "grid": 2.0**-20, "key": KEY}
    expected, _ = emit(NoiseStream(SIGNED, 500, **options))
    bound = base.error_bound
    monkeypatch.setattr(base, "error_bound", lambda *given: min(1e-2, 1e6 * bound(*given)))
    stream = NoiseStream(SIGNED, 500, memory="regenerate", **options)
    state, rows, counted = stream.init(), [], 0
    for _ in range(stream.n):
        row, state = stream.next(state)
        rows.append(row.copy())
        counted += stream.arrays.exactly
    assert counted > 5
    np.testing.assert_array_equal(np.array(rows), expected)


def test_the_bound_on_float64_counts_every_row_that_is_made_again(monkeypatch):
    options = {"std": 3.0, "grid": 2.0**-20, "key": KEY, "memory": "regenerate", "cipher": "ChaCha20"}
    weights = 3.0 * 2.0**20 * np.array([1.3, -0.6, 0.0, 0.2, -0.1])
    rows = NoiseStream(Identity(11), 500, dtype=np.float64, key=KEY, cipher="ChaCha20")
    largest = [float(np.abs(rows.fresh(t)).max()) for t in range(11)]
    given, bound = [], base.error_bound

    def watched(*numbers):
        given.append(numbers)
        return bound(*numbers)

    monkeypatch.setattr(base, "error_bound", watched)
    emit(NoiseStream(SIGNED, 500, **options))
    assert len(given) == 11
    for t, (terms, total, inexact) in enumerate(given):
        used = np.abs(weights[: t + 1])
        assert terms == np.count_nonzero(used[1:])
        assert total == pytest.approx(float(used @ largest[t::-1][: len(used)]), rel=1e-12)
        assert inexact == pytest.approx(2.0**-48 * used.sum(), rel=1e-12)


@pytest.mark.slow
def test_nothing_but_the_row_and_a_block_is_allocated_on_a_grid():
    inverse = BandedInverse.one_parameter(5, 0.9)
    stream = NoiseStream(inverse, 4 * 2**20, key=KEY, grid=2.0**-20, memory="regenerate")
    state, row = stream.init(), np.empty(4 * 2**20, np.int64)
    tracemalloc.start()
    for _ in range(4):
        _, state = stream.next(state, out=row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 8 * 2**20  # three pieces of float64 for each of two threads, and small things


# A number of bytes, and what is refused


@pytest.mark.parametrize("grid", [None, 2.0**-20])
def test_a_number_of_bytes_chooses(grid):
    options = {"std": 3.0, "grid": grid, "key": KEY}
    stored, made = (NoiseStream(SIGNED, 100, memory=way, **options) for way in ("store", "regenerate"))
    needed = stored.memory_bytes
    assert needed == SIGNED.recurrence().rows * 100 * (4 if grid is None else 8)
    for memory in (needed, float(needed), f"{needed}B", "1GB"):
        assert NoiseStream(SIGNED, 100, memory=memory, **options).identity == stored.identity
    for memory in (needed - 1, 1):
        found = NoiseStream(SIGNED, 100, memory=memory, **options)
        assert found.identity == made.identity and found.memory_bytes == 0
    part = NoiseStream(SIGNED, 200, memory=needed, offset=50, length=100, **options)
    assert part.memory_bytes == needed  # what counts is the slice


@in_turn(
    ("strategy", "options", "said"),
    [
        (SIGNED, {"memory": "disk"}, "memory='disk' is unknown: choose"),
        (SIGNED, {"memory": 0}, "memory=0"),
        (SIGNED, {"memory": "3 XB"}, "is not a size"),
        (BLT(5, [0.5], [0.5]), {"memory": "regenerate"}, "rows of few fresh ones.*use memory='store'"),
        (ColumnNormalized(Tree(5)), {"memory": "regenerate"}, "rows of few fresh ones.*use memory='store'"),
        (DENSE, {"memory": "regenerate"}, "Autoregressive, and follows from 9 earlier rows"),
        (DENSE, {"memory": "regenerate", "grid": 2.0**-20}, "rows of few fresh ones"),
        (Tree(9), {"memory": 10}, "follows from take 144 bytes"),
        (DENSE, {"memory": 10, "grid": 2.0**-20}, "follows from take"),
    ],
)
def test_refusals(strategy, options, said):
    with pytest.raises(ValueError, match=said):
        NoiseStream(strategy, 9, **options)
