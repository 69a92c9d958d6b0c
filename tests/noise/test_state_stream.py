"""Streams of constant-recurrent strategies: d rows of memory, mixed by a matrix (see test_stream too)."""

import numpy as np
import pytest

from anechoic.errors import MismatchError
from anechoic.noise import numpy_arrays
from anechoic.strategies import BLT, BandedToeplitz, ColumnNormalized, Restarted
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.strategies.scaled import ColumnScaled
from tests.marks import slow
from tests.noise.streams import BACKENDS, emit, fresh_rows, make_stream

TURN = [[0.24, -0.87], [0.87, 0.24]]


def turning(n, first=1.4):
    return ConstantRecurrent(n, [0.5, 0.1], TURN, [1.0, 0.3], first)


def wrapped():
    n = 17
    return {
        "plain": turning(n),
        "inverse": turning(n).inverse(),
        "normalised": ColumnNormalized(turning(n)),
        "rising": ColumnScaled(turning(n), np.geomspace(0.1, 10.0, n)),
        "restarted": Restarted(ColumnNormalized(turning(5)), 4, n),
        "one-step-blocks": Restarted(turning(1), n),
        "defective": ConstantRecurrent(n, [0.2, 0.1], [[0.8, 1.0], [0.0, 0.8]], [0.3, 0.4]),
        "no-input": ConstantRecurrent(n, [0.5], [[0.5]], [0.0]),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", wrapped())
def test_rows_are_those_of_solve(name, backend):
    strategy = wrapped()[name]
    stream = make_stream(strategy, 7, backend, std=0.3)
    rows, _ = emit(stream)
    np.testing.assert_allclose(rows, 0.3 * strategy.solve(fresh_rows(stream)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_blt_and_its_general_form_give_the_same_rows(backend):
    blt = BLT(40, [0.3, 0.2, 0.1], [0.99, 0.7, 0.0])
    one, _ = emit(make_stream(blt, 5, backend))
    other, _ = emit(make_stream(ConstantRecurrent.from_blt(blt), 5, backend))
    np.testing.assert_allclose(one, other, atol=1e-12)
    banded = BandedToeplitz(40, [1.0, 0.5, 0.25])
    one, _ = emit(make_stream(banded, 5, backend))
    other, _ = emit(make_stream(ConstantRecurrent.from_rational(40, [1.0, 0.5, 0.25], [1.0]), 5, backend))
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_one_row_for_each_state(backend):
    stream = make_stream(turning(30), 11, backend, precision="float32")
    assert stream.memory_bytes == 2 * 11 * 4
    assert make_stream(turning(1), 11, backend).memory_bytes == 0
    state = stream.init()
    assert len(state.state_dict()["rows"]) == 0
    for count in range(1, 4):
        _, state = stream.next(state)
        assert tuple(state.state_dict()["rows"].shape) == (2, 11), count


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_was_never_written_is_never_read(backend):
    strategy = Restarted(turning(4), 3)
    expected, _ = emit(make_stream(strategy, 6, backend))
    stream = make_stream(strategy, 6, backend)
    state = stream.init()
    state._memory[...] = float("nan")
    found, _ = emit(stream, state)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", ["numpy", *slow("torch")])  # of the same bits
@pytest.mark.slow
def test_float32_stays_close_over_many_steps(backend):
    strategy = ConstantRecurrent.from_blt(BLT(3000, [0.01, 0.2], [0.9999, 0.6]))
    exact, _ = emit(make_stream(strategy, 3, "numpy"))
    fresh = fresh_rows(make_stream(strategy, 3, backend, precision="float32"))
    found, _ = emit(make_stream(strategy, 3, backend, precision="float32"))
    assert np.abs(found - strategy.solve(fresh)).max() < 1e-4
    assert exact.std() == pytest.approx(found.std(), rel=0.05)


def test_long_rows_are_fed_in_pieces(monkeypatch):
    expected, _ = emit(make_stream(turning(6), 1000, "torch"))
    monkeypatch.setattr(numpy_arrays, "_CHUNK", 64)
    found, _ = emit(make_stream(turning(6), 1000, "torch"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "other",
    [
        turning(9, first=1.5),
        ConstantRecurrent(9, [0.5, 0.2], TURN, [1.0, 0.3], 1.4),
        ConstantRecurrent(9, [0.5, 0.1], np.transpose(TURN), [1.0, 0.3], 1.4),
        ConstantRecurrent(9, [0.5, 0.1], TURN, [1.0, 0.4], 1.4),
        ColumnNormalized(turning(9)),
    ],
)
def test_states_of_other_systems_are_refused(other):
    _, state = emit(make_stream(other, 4, "numpy"), count=3)
    with pytest.raises(MismatchError, match="other coefficients"):
        make_stream(turning(9), 4, "numpy").restore(state.state_dict())
