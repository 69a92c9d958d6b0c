"""Ring buffers whose rows are summed for several steps at once: groups, restarts, ends, and what is saved."""

import numpy as np
import pytest

from anechoic.noise.numpy_arrays import NumpyColumns
from anechoic.strategies import Banded, BandedInverse, BandedToeplitz, ColumnNormalized, Restarted, Toeplitz
from anechoic.workloads import prefix_sum
from tests.marks import each_once, mostly_slow
from tests.noise.streams import BACKENDS, emit, fresh_rows, make_stream

ROOT = Toeplitz.square_root(prefix_sum(64)).coefficients


def free(n, bands):
    columns = np.random.default_rng(bands).uniform(-0.2, 0.2, (n, bands))
    columns[:, 0] = np.linspace(0.7, 1.5, n)
    for j in range(n):
        columns[j, max(1, n - j) :] = 0
    return Banded(n, columns)


STRATEGIES = {
    "7 bands": BandedToeplitz(40, ROOT[:7]),
    "8 bands": BandedToeplitz(41, ROOT[:8]),
    "16 bands": BandedToeplitz(83, ROOT[:16]),
    "64 bands": BandedToeplitz(150, ROOT),
    "free": free(45, 11),
    "normalised": ColumnNormalized(BandedToeplitz(43, ROOT[:9])),
    "restarted, cut": Restarted(BandedToeplitz(21, ROOT[:10]), 3, 50),
    "normalised restarts, cut": Restarted(ColumnNormalized(free(22, 12)), 3, 47),
    "gains over restarts": ColumnNormalized(Restarted(BandedToeplitz(21, ROOT[:10]), 3, 50)),
    "inverse": BandedInverse(60, ROOT[:20] * (-1.0) ** np.arange(20)),
    "inverse restarted": Restarted(ColumnNormalized(BandedInverse(19, ROOT[:13])), 3, 45),
}


@pytest.mark.parametrize(("name", "backend"), each_once(STRATEGIES, BACKENDS))
@pytest.mark.few(8)
def test_rows_are_those_of_solve(name, backend):
    strategy = STRATEGIES[name]
    stream = make_stream(strategy, 5, backend, std=0.7)
    rows, _ = emit(stream)
    expected = 0.7 * strategy.solve(fresh_rows(stream))
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.few(7)
def test_a_stream_restored_at_every_step_goes_on_bit_for_bit(name):
    stream = make_stream(STRATEGIES[name], 70, "numpy", precision="float32")
    whole, _ = emit(stream)
    state, rows = stream.init(), []
    for _ in range(stream.n):
        saved = state.state_dict()
        state = stream.restore(saved)
        state._memory[len(saved["rows"]) :] = np.nan  # nothing but what was saved is read
        row, state = stream.next(state)
        rows.append(row)
    np.testing.assert_array_equal(np.array(rows), whole)


@pytest.mark.parametrize("name", mostly_slow(STRATEGIES, quick=list(STRATEGIES)[::2]))
@pytest.mark.few(2)
def test_slices_and_other_devices_take_the_same_steps(name, monkeypatch):
    monkeypatch.setattr("anechoic.noise.numpy_arrays._TILE", 70)
    strategy = STRATEGIES[name]
    whole, _ = emit(make_stream(strategy, 300, "numpy", precision="float32"))
    part, _ = emit(make_stream(strategy, 300, "numpy", precision="float32", offset=99, length=71))
    assert part.tobytes() == whole[:, 99:170].tobytes()
    stream = make_stream(strategy, 33, "torch", device="meta")
    state = stream.init()
    for _ in range(stream.n):
        row, state = stream.next(state)
        assert row.device.type == "meta"


def test_long_windows_are_passed_over_once_in_a_group(monkeypatch):
    calls = []
    look_ahead = NumpyColumns.look_ahead

    def counted(self, weights, used, slots):
        calls.append((len(used), len(slots)))
        look_ahead(self, weights, used, slots)

    monkeypatch.setattr(NumpyColumns, "look_ahead", counted)
    emit(make_stream(STRATEGIES["64 bands"], 3, "numpy"))
    assert calls == [(min(t, 64), min(8, 150 - t)) for t in range(8, 150, 8)]
    calls.clear()
    emit(make_stream(STRATEGIES["7 bands"], 3, "numpy"))
    assert not calls
