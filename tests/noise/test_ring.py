"""Ring buffers whose rows are summed for several steps at once: groups, restarts, ends, and what is saved."""

import numpy as np
import pytest

from anechoic.noise.numpy_arrays import NumpyColumns
from anechoic.strategies import Banded, BandedInverse, BandedToeplitz, ColumnNormalized, Restarted, Toeplitz
from anechoic.workloads import prefix_sum
from tests.noise.streams import emit, make_stream

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
