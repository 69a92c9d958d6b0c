"""The contract of a stream: its rows are those of std * C^-1 Z, once each, and never more than n of them."""

from inspect import isabstract
from itertools import product

import numpy as np
import pytest

from anechoic import strategies, workloads
from anechoic._serialize import _REGISTRY
from anechoic.errors import DesynchronizedError, GuaranteeError, HorizonError
from anechoic.noise import NoiseStream
from anechoic.noise.filter_choice import stored_filter
from anechoic.noise.numpy_arrays import NumpyColumns
from anechoic.noise.recurrence import Recurrence
from anechoic.strategies import BLT, BandedToeplitz, Identity
from anechoic.strategies.base import Strategy
from tests.marks import each_once, in_turn
from tests.noise.streams import BACKENDS, KEY, dtype_of, emit, fresh_rows, make_stream, noise_of
from tests.zoo import ONE_OF_EACH, STRATEGIES


def test_the_registry_has_every_strategy():
    kinds = {type(strategy).__name__ for strategy in STRATEGIES.values()}
    ours = (kind for kind in _REGISTRY.values() if kind.__module__.startswith("anechoic."))
    assert kinds == {kind.__name__ for kind in ours if issubclass(kind, Strategy) and not isabstract(kind)}


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.few(17)
def test_rows_are_those_of_solve(name):
    strategy = STRATEGIES[name]
    for backend in BACKENDS:
        stream = make_stream(strategy, 17, backend, std=0.7)
        rows, state = emit(stream)
        expected = 0.7 * noise_of(strategy, fresh_rows(stream))
        assert state.step == strategy.n
        within = 1e-11 * np.abs(expected).max()
        np.testing.assert_allclose(rows, expected, rtol=1e-11, atol=within, err_msg=backend)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.few(18)
def test_rows_in_single_precision_are_those_of_solve(name):
    strategy = STRATEGIES[name]
    for backend in BACKENDS:
        stream = make_stream(strategy, 33, backend, precision="float32", std=3.0)
        row, _ = stream.next(stream.init())
        assert row.dtype == dtype_of(backend, "float32")
        rows, _ = emit(stream)
        expected = 3.0 * noise_of(strategy, fresh_rows(stream))
        within = 2e-5 * np.abs(expected).max()
        np.testing.assert_allclose(rows, expected, rtol=2e-4, atol=within, err_msg=backend)


@pytest.mark.parametrize(
    ("name", "backend"), each_once(["identity", "output", "banded-mixed", "blt-4", "dense"], BACKENDS)
)
@pytest.mark.few(3)
def test_odd_dimensions(name, backend):
    strategy = STRATEGIES[name]
    for precision, dimension in product(("float32", "float64"), (1, 2, 7, 8, 15, 16, 17, 31, 33, 100)):
        stream = make_stream(strategy, dimension, backend, precision=precision)
        rows, _ = emit(stream)
        expected = strategy.solve(fresh_rows(stream))
        tolerance = 1e-11 if precision == "float64" else 2e-5
        np.testing.assert_allclose(rows, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["banded-mixed", "blt-4", "output-momentum"])
def test_rows_longer_than_a_block(name, backend, monkeypatch):
    monkeypatch.setattr("anechoic.noise.gaussian.BLOCK", 64)
    strategy = STRATEGIES[name]
    stream = make_stream(strategy, 3 * 64 + 5, backend)
    rows, _ = emit(stream)
    np.testing.assert_allclose(rows, strategy.solve(fresh_rows(stream)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_banded_stream_stays_exact(backend):
    strategy = BandedToeplitz(400, strategies.Toeplitz.square_root(workloads.prefix_sum(32)).coefficients)
    stream = make_stream(strategy, 5, backend, precision="float32")
    rows, _ = emit(stream)
    expected = strategy.solve(fresh_rows(stream))
    assert np.abs(rows - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_horizon_of_a_billion_steps_costs_nothing(backend):
    stream = make_stream(BLT(10**9, [0.2, 0.1], [0.9, 0.5]), 3, backend)
    rows, _ = emit(stream, count=6)
    fresh = np.array([np.asarray(stream.fresh(t)) for t in range(6)])
    np.testing.assert_allclose(rows, BLT(6, [0.2, 0.1], [0.9, 0.5]).solve(fresh), rtol=1e-12)


# Memory


@in_turn(
    ("name", "rows"),
    [
        ("identity", 0),
        ("banded-1", 0),
        ("dense-diagonal", 0),
        ("banded-one-step", 0),
        ("blt-1", 0),
        ("toeplitz-root-1", 0),
        ("restarted-singles(blt-1)", 0),
        ("output", 2),
        ("output-momentum", 3),
        ("banded-2", 2),
        ("banded-trailing-zero", 2),
        ("dense-banded", 3),
        ("dense", 9),
        ("restarted(dense)", 9),
        ("blt-4", 4),
        ("normalised(blt-4)", 4),
    ],
)
def test_memory_is_bounded_by_window_steps_and_buffers(name, rows):
    stream = make_stream(STRATEGIES[name], 10, "numpy", precision="float32")
    assert stream.memory_bytes == rows * 10 * 4
    assert stream.init().state_dict()["rows"].shape == (0, 10)


@pytest.mark.parametrize("name", ["restarted(banded-2)", "restarted(blt-4)", "restarted(output)"])
def test_at_a_restart_nothing_of_the_past_is_saved(name):
    stream = make_stream(STRATEGIES[name], 10, "numpy")
    _, state = emit(stream, count=STRATEGIES[name].base.n - 1)
    assert len(state.state_dict()["rows"]) > 0
    _, state = emit(stream, state, count=1)
    assert len(state.state_dict()["rows"]) == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["identity", "banded-1", "output", "banded-mixed", "blt-4", "dense"])
def test_the_emitted_row_belongs_to_the_caller(name, backend):
    strategy = STRATEGIES[name]
    stream = make_stream(strategy, 9, backend)
    expected, _ = emit(stream)
    state, kept = stream.init(), []
    for _ in range(stream.n):
        row, state = stream.next(state)
        kept.append(np.asarray(row).copy())
        row *= 1e6
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["identity", "output", "banded-mixed", "blt-4"])
def test_rows_can_be_written_into_given_memory(name, backend):
    stream = make_stream(STRATEGIES[name], 9, backend)
    expected, _ = emit(stream)
    out, state = stream.arrays.empty(9), stream.init()
    for t in range(stream.n):
        row, state = stream.next(state, out=out)
        assert row is out
        np.testing.assert_array_equal(np.asarray(out), expected[t])
        out.fill(np.nan) if backend == "numpy" else out.fill_(float("nan"))


def test_given_memory_that_does_not_fit_is_refused_and_the_state_lives_on():
    stream = make_stream(STRATEGIES["banded-2"], 4, "numpy")
    state = stream.init()
    frozen = np.empty(4)
    frozen.setflags(write=False)
    for out in (np.empty(5), np.empty(4, np.float32), np.empty((4, 1)), np.empty(8)[::2], frozen, [0.0] * 4):
        with pytest.raises(ValueError, match="out must be"):
            stream.next(state, out=out)
    assert not state.consumed
    stream.next(state)


def test_given_tensors_that_do_not_fit_are_refused():
    import torch

    stream = make_stream(STRATEGIES["banded-2"], 4, "torch", precision="float32")
    state = stream.init()
    with torch.inference_mode():
        inference = torch.empty(4)
    for out in (
        torch.empty(5),
        torch.empty(4, dtype=torch.float64),
        torch.empty(8)[::2],
        torch.empty(4, requires_grad=True),
        torch.empty(4, device="meta"),
        inference,
        np.empty(4, np.float32),
    ):
        with pytest.raises(ValueError, match="out must be"):
            stream.next(state, out=out)
    stream.next(state)


# Each row once, none beyond n


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["identity", "banded-2", "blt-4", "restarted-cut(banded-2)", "banded-one-step"]
)
def test_past_the_horizon_is_an_error(name, backend):
    stream = make_stream(STRATEGIES[name], 3, backend)
    _, state = emit(stream)
    for _ in range(2):
        with pytest.raises(HorizonError, match=rf"all {stream.n} noise rows.*more steps"):
            stream.next(state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["identity", "banded-2", "blt-4", "output"])
def test_a_consumed_state_is_an_error(name, backend):
    stream = make_stream(STRATEGIES[name], 3, backend)
    state = stream.init()
    _, after = stream.next(state)
    assert (state.consumed, after.consumed) == (True, False)
    with pytest.raises(DesynchronizedError, match="used for row 0 already"):
        stream.next(state)
    with pytest.raises(DesynchronizedError, match="used for row 0 already"):
        state.state_dict()
    stream.next(after)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("banded-mixed", "draw"),
        ("banded-mixed", "add"),
        ("tree-wide", "assign"),
        ("blt-4", "feed_back"),
    ],
)
def test_an_interrupted_step_leaves_no_usable_state(name, moment, backend, monkeypatch):
    stream = make_stream(STRATEGIES[name], 5, backend)
    _, state = emit(stream, count=4)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NumpyColumns, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.next(state)
    with pytest.raises(DesynchronizedError):
        stream.next(state)


def test_a_state_of_another_stream_is_refused():
    one, other = (make_stream(STRATEGIES["banded-2"], 3, "numpy") for _ in range(2))
    state = one.init()
    with pytest.raises(ValueError, match="another stream"):
        other.next(state)
    one.next(state)


def test_a_state_is_neither_copied_nor_pickled():
    import copy
    import pickle

    state = make_stream(STRATEGIES["banded-2"], 3, "numpy").init()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            attempt(state)


# Arguments


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["float16", "int32", "complex64"])
def test_other_precisions_are_refused(precision, backend):
    with pytest.raises(ValueError, match=r"float32 or float64"):
        make_stream(Identity(3), 2, backend, precision=precision)


def test_bfloat16_and_nonsense_are_refused():
    import torch

    for dtype in (torch.bfloat16, np.float32, "single"):
        with pytest.raises(ValueError, match="float32 or float64"):
            NoiseStream(Identity(3), 2, backend="torch", dtype=dtype)
    for dtype in (torch.float32, "nonsense"):
        with pytest.raises(ValueError, match="float32 or float64"):
            NoiseStream(Identity(3), 2, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_precision_is_the_default(backend):
    stream = NoiseStream(Identity(3), 2, backend=backend)
    row, _ = stream.next(stream.init())
    assert row.dtype == dtype_of(backend, "float32")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.eye(3), 2), {}, "must be a Strategy"),
        ((Identity(3), 0), {}, "dimension=0"),
        ((Identity(3), 2.0), {}, "dimension=2.0"),
        ((Identity(3), 2), {"std": 0.0}, "std=0.0"),
        ((Identity(3), 2), {"std": -1.0}, "std=-1.0"),
        ((Identity(3), 2), {"std": float("nan")}, "std=nan"),
        ((Identity(3), 2), {"std": float("inf")}, "std=inf"),
        ((Identity(3), 2), {"key": b"short"}, "5 bytes"),
        ((Identity(3), 2), {"key": 7}, "int"),
        ((Identity(3), 2), {"offset": -1}, "offset=-1"),
        ((Identity(3), 2), {"offset": 2}, "length=0"),
        ((Identity(3), 2), {"length": 0}, "length=0"),
        ((Identity(3), 2), {"offset": 1, "length": 2}, "offset=1 and length=2 go beyond the 2 entries"),
        ((Identity(3), 2), {"backend": "jax"}, "backend='jax'"),
        ((Identity(3), 2), {"device": "cuda"}, "backend='torch'"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        NoiseStream(*arguments, **options)


@pytest.mark.parametrize("step", [-1, 3, 1.0])
def test_fresh_rows_outside_the_horizon_are_refused(step):
    with pytest.raises(ValueError, match="step="):
        NoiseStream(Identity(3), 2).fresh(step)


@pytest.mark.parametrize("std", [1e-42, 1e39])
def test_noise_that_single_precision_cannot_hold_is_refused(std):
    # cast to float32 these would be rows without fresh noise, or infinite ones
    for name in ("identity", "banded-mixed", "output", "blt-4"):
        stream = make_stream(STRATEGIES[name], 3, "numpy", precision="float32", std=std)
        with pytest.raises(GuaranteeError, match="beyond the range of float32"):
            stream.next(stream.init())
        emit(make_stream(STRATEGIES[name], 3, "numpy", precision="float64", std=std))


def test_an_unknown_recurrence_is_refused():
    with pytest.raises(ValueError, match="Recurrence is not a kind"):
        stored_filter(Recurrence(3), 1.0, "float32")


def test_the_key_is_kept_out_of_sight():
    stream = NoiseStream(Identity(3), 2, key=b"k" * 32)
    state = stream.init()
    assert stream.key == b"k" * 32
    assert "kkkk" not in repr(stream) + repr(state) + repr(state.state_dict()) + repr(stream.identity)
    assert b"k".hex() * 32 not in repr(state.state_dict())


def test_without_a_key_streams_differ():
    one, other = (NoiseStream(Identity(3), 8) for _ in range(2))
    assert one.key != other.key
    assert not np.array_equal(one.fresh(0), other.fresh(0))


def test_strategies_make_streams():
    stream = Identity(3).stream(4, key=KEY, std=2.0)
    row, _ = stream.next(stream.init())
    np.testing.assert_allclose(row, 2 * stream.fresh(0))
