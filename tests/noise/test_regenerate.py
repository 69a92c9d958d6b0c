"""Streams without memory: fresh rows of earlier steps are made from the key again."""

import tracemalloc

import numpy as np
import pytest

from anechoic.errors import CheckpointError, GuaranteeError, HorizonError, MismatchError
from anechoic.noise import NoiseStream
from anechoic.noise.recurrence import Autoregressive, MovingAverage
from anechoic.noise.rounding import base, on_device
from anechoic.strategies import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Identity,
    Restarted,
    Toeplitz,
    Tree,
)
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.workloads import prefix_sum
from tests.marks import each_once, each_pair, every_other
from tests.noise.streams import BACKENDS, KEY, dtype_of, emit, fresh_rows, make_stream
from tests.zoo import ONE_OF_EACH, STRATEGIES

KINDS = (Autoregressive, MovingAverage)
MADE = [name for name, item in STRATEGIES.items() if isinstance(item.recurrence(), KINDS)]
SIGNED = BandedInverse(11, [1.3, -0.6, 0.0, 0.2, -0.1])
ROOT = Toeplitz.square_root(prefix_sum(11))
DENSE = STRATEGIES["dense"]


def test_every_kind_is_there():
    names = " ".join(MADE)
    for kind in ("identity", "output-rates", "inverse-mixed", "normalised(", "restarted-cut("):
        assert kind in names
    for kind in ("banded-mixed", "free-all", "dense-banded"):
        assert kind in MADE
    for kind in ("toeplitz-root", "banded-2", "free-3", "dense"):
        for wrapped in (kind, f"normalised({kind})", f"restarted(normalised({kind}))"):
            assert wrapped in MADE


@pytest.mark.parametrize(
    ("name", "backend"), each_once([name for name in MADE if name in ONE_OF_EACH], BACKENDS)
)
@pytest.mark.few(29)
def test_rows_are_those_of_solve(name, backend):
    strategy = STRATEGIES[name]
    stream = make_stream(strategy, 17, backend, std=0.7, memory="regenerate")
    rows, state = emit(stream)
    expected = 0.7 * strategy.solve(fresh_rows(stream))
    np.testing.assert_allclose(rows, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
    assert stream.memory_bytes == 0
    assert state.state_dict()["rows"].shape == (0, 17)
    with pytest.raises(HorizonError):
        stream.next(state)


@pytest.mark.parametrize(
    ("strategy", "dimension", "precision", "backend"),
    each_pair([SIGNED, ROOT, DENSE], [1, 7, 16, 33, 3 * 64 + 5], ["float32", "float64"], BACKENDS),
)
def test_rows_differ_from_stored_ones_by_rounding(strategy, dimension, precision, backend, monkeypatch):
    monkeypatch.setattr("anechoic.noise.gaussian.BLOCK", 64)
    options = {"precision": precision, "key": bytes(32), "std": 2.0}
    stored, _ = emit(make_stream(strategy, dimension, backend, **options))
    made, _ = emit(make_stream(strategy, dimension, backend, memory="regenerate", **options))
    tolerance = 1e-14 if precision == "float64" else 2e-6
    np.testing.assert_allclose(made, stored, rtol=0, atol=tolerance * np.abs(stored).max())
    other, _ = emit(
        make_stream(strategy, dimension, backend, memory="regenerate", precision=precision, std=2.0)
    )
    assert not (other == made).any()  # another key


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", ["inverse-mixed", "toeplitz-root", "dense", "normalised(free-3)"])
def test_both_backends_make_the_same_bits(name, precision):
    rows = [
        emit(make_stream(STRATEGIES[name], 150, backend, precision=precision, memory="regenerate"))[0]
        for backend in BACKENDS
    ]
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("size", every_other([1, 63, 64, 65, 130]))
@pytest.mark.few(1)
def test_inverse_coefficients_are_those_of_the_strategy_at_any_step(size):
    """They are computed 64, 128, … at a time."""
    strategy = BandedToeplitz(size, [1.0, -0.99][:size])
    stream = make_stream(strategy, 2, "numpy", memory="regenerate")
    rows, _ = emit(stream)
    np.testing.assert_allclose(rows, strategy.solve(fresh_rows(stream)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "backend"),
    each_once(
        [
            SIGNED,
            ColumnNormalized(SIGNED),
            Restarted(SIGNED, 2, 19),
            Toeplitz.square_root(prefix_sum(70)),
            Restarted(DENSE, 2, 16),
        ],
        BACKENDS,
    ),
)
@pytest.mark.few(2)
def test_a_restored_stream_continues_bit_for_bit(strategy, backend):
    options = {"precision": "float32", "memory": "regenerate"}
    whole, _ = emit(make_stream(strategy, 40, backend, **options))
    for stop in (0, 1, 3, 12, strategy.n) if strategy.n < 65 else (65,):
        if stop > strategy.n:
            continue
        _, state = emit(make_stream(strategy, 40, backend, **options), count=stop)
        again = make_stream(strategy, 40, backend, **options)
        rest, _ = emit(again, again.restore(state.state_dict()))
        np.testing.assert_array_equal(rest, whole[stop:])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", every_other([SIGNED, DENSE]))
def test_the_number_of_threads_leaves_no_trace(strategy, backend, monkeypatch):
    monkeypatch.setattr("anechoic.noise.gaussian.BLOCK", 64)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("anechoic.noise.numpy_arrays.available_threads", lambda threads=threads: threads)
        if backend == "torch":
            monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        stream = make_stream(strategy, 1000, backend, precision="float32", memory="regenerate")
        found.append(emit(stream)[0])
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", [SIGNED, DENSE])
def test_rows_can_be_written_into_given_memory_and_belong_to_the_caller(strategy, backend):
    stream = make_stream(strategy, 9, backend, memory="regenerate")
    expected, _ = emit(stream)
    state, out = stream.init(), stream.arrays.empty(9)
    for t in range(stream.n):
        row, state = stream.next(state, out=out)
        assert row is out
        np.testing.assert_array_equal(np.asarray(row), expected[t])
        row *= 1e6


@pytest.mark.parametrize("strategy", [BandedInverse.one_parameter(5, 0.9), Dense(np.tril(np.ones((5, 5))))])
@pytest.mark.slow
def test_nothing_but_the_row_and_a_block_is_allocated(strategy):
    stream = NoiseStream(strategy, 4 * 2**20, key=KEY, memory="regenerate")
    state, row = stream.init(), stream.arrays.empty(4 * 2**20)
    tracemalloc.start()
    for _ in range(4):
        _, state = stream.next(state, out=row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 4 * 2**20  # a block of float32 for each of two threads, and small things


def test_neither_way_resumes_the_other():
    stored, made = (make_stream(SIGNED, 5, "numpy", memory=memory) for memory in ("store", "regenerate"))
    _, state = emit(stored, count=3)
    with pytest.raises(MismatchError, match="kind='MovingAverage', but"):
        made.restore(state.state_dict())
    _, state = emit(made, count=3)
    with pytest.raises(MismatchError, match="regenerated"):
        stored.restore(state.state_dict())
    for strategy in (ROOT, DENSE):
        stored, again = (make_stream(strategy, 5, "numpy", memory=way) for way in ("store", "regenerate"))
        _, past = emit(stored, count=3)
        with pytest.raises(MismatchError, match="kind='Autoregressive', but"):
            again.restore(past.state_dict())
    broken = state.state_dict() | {"rows": np.zeros((2, 5))}
    with pytest.raises(CheckpointError, match="damaged"):
        made.restore(broken)


@pytest.mark.parametrize(
    "strategy",
    [BLT(5, [0.5], [0.5]), ConstantRecurrent(5, [0.5], [[0.5]], [0.3]), Tree(5), ColumnNormalized(Tree(5))],
)
def test_strategies_that_keep_a_few_rows_are_refused(strategy):
    with pytest.raises(ValueError, match=r"memory='regenerate' makes rows from.*use memory='store'"):
        strategy.stream(3, memory="regenerate")


def test_refusals():
    with pytest.raises(ValueError, match="memory='disk' is unknown"):
        SIGNED.stream(3, memory="disk")
    with pytest.raises(GuaranteeError, match="row 0 needs fresh noise"):
        stream = NoiseStream(BandedInverse(3, [1e-30, 1.0]), 3, std=1e-30, memory="regenerate")
        stream.next(stream.init())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", [BandedInverse, BandedToeplitz])
def test_a_horizon_of_a_billion_steps_costs_nothing(family, backend):
    stream = make_stream(family(10**9, [1.0, -0.5, -0.1]), 3, backend, memory="regenerate")
    rows, _ = emit(stream, count=6)
    fresh = np.array([np.asarray(stream.fresh(t)) for t in range(6)])
    np.testing.assert_allclose(rows, family(6, [1.0, -0.5, -0.1]).solve(fresh), rtol=1e-12)
    assert dtype_of(backend, "float64") == stream.init().state_dict()["rows"].dtype


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
    """For a stream of its own, and for one on a device (the CPU in its place)."""
    options = {"std": 3.0, "grid": 2.0**-20, "key": KEY, "memory": "regenerate", "cipher": "ChaCha20"}
    weights = 3.0 * 2.0**20 * np.array([1.3, -0.6, 0.0, 0.2, -0.1])
    rows = NoiseStream(Identity(11), 500, dtype=np.float64, key=KEY, cipher="ChaCha20")
    largest = [float(np.abs(rows.fresh(t)).max()) for t in range(11)]
    given, bound = [], base.error_bound

    def watched(*numbers):
        given.append(numbers)
        return bound(*numbers)

    for module in (base, on_device):
        monkeypatch.setattr(module, "error_bound", watched)
        stream = NoiseStream(SIGNED, 500, backend="numpy" if module is base else "torch", **options)
        stream.arrays._on_cpu = module is base
        emit(stream)
        assert len(given) == stream.n
        for t, (terms, total, inexact) in enumerate(given):
            used = np.abs(weights[: t + 1])
            assert terms == np.count_nonzero(used[1:])
            assert total == pytest.approx(float(used @ largest[t::-1][: len(used)]), rel=1e-12)
            assert inexact == pytest.approx(2.0**-48 * used.sum(), rel=1e-12)
        given.clear()


def test_states_of_one_way_are_not_those_of_the_other():
    options = {"std": 3.0, "grid": 2.0**-20, "key": KEY}
    stored, made = (NoiseStream(SIGNED, 5, memory=way, **options) for way in ("store", "regenerate"))
    for one, other in [(stored, made), (made, stored)]:
        with pytest.raises(MismatchError):
            other.restore(one.init().state_dict())


@pytest.mark.parametrize("strategy", [BandedToeplitz(9, [1.0, 0.5]), DENSE, BLT(9, [0.2], [0.9]), Tree(9)])
def test_what_follows_from_rounded_rows_needs_memory(strategy):
    with pytest.raises(ValueError, match="memory='regenerate' on a grid makes rows of fresh ones"):
        NoiseStream(strategy, 3, grid=2.0**-20, memory="regenerate")


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


# A number of bytes


@pytest.mark.parametrize("grid", [None, 2.0**-20])
def test_a_number_of_bytes_chooses(grid):
    options = {"std": 3.0, "grid": grid, "key": KEY}
    stored = NoiseStream(SIGNED, 100, **options)
    needed = stored.memory_bytes
    assert needed == SIGNED.recurrence().rows * 100 * (4 if grid is None else 8)
    for memory in (needed, float(needed), f"{needed}B", "1GB"):
        assert NoiseStream(SIGNED, 100, memory=memory, **options).identity == stored.identity
    made = NoiseStream(SIGNED, 100, memory="regenerate", **options)
    for memory in (needed - 1, 1):
        found = NoiseStream(SIGNED, 100, memory=memory, **options)
        assert found.identity == made.identity and found.memory_bytes == 0
    part = NoiseStream(SIGNED, 200, memory=needed, offset=50, length=100, **options)
    assert part.memory_bytes == needed  # what counts is the slice


@pytest.mark.parametrize("strategy", [BandedToeplitz(9, [1.0, 0.5]), DENSE, BLT(9, [0.2], [0.9]), Tree(9)])
@pytest.mark.parametrize("grid", [None, 2.0**-20])
def test_too_few_bytes_for_what_cannot_be_made_again_are_refused(strategy, grid):
    needed = NoiseStream(strategy, 100, grid=grid).memory_bytes
    assert NoiseStream(strategy, 100, grid=grid, memory=needed).memory_bytes == needed
    with pytest.raises(ValueError, match=f"follows from take {needed} bytes"):
        NoiseStream(strategy, 100, grid=grid, memory=needed - 1)


@pytest.mark.parametrize(
    ("memory", "said"), [("none", "is unknown: choose"), (0, "memory=0"), ("3 XB", "is not a size")]
)
def test_what_is_no_memory_is_refused(memory, said):
    with pytest.raises(ValueError, match=said):
        NoiseStream(SIGNED, 3, memory=memory)
