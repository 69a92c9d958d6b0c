"""Saving and restoring a stream in the middle of a run."""

import io

import numpy as np
import pytest

from anechoic.errors import CheckpointError, MismatchError
from anechoic.noise import NoiseStream
from anechoic.noise.fresh import FreshRows, RowKeys
from anechoic.noise.gaussian import FreshRow
from anechoic.noise.recurrence import MovingAverage
from anechoic.strategies import (
    Banded,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    FullTree,
    Restarted,
    Toeplitz,
    Tree,
)
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.strategies.tree_aggregation import TreeAggregation
from anechoic.workloads import prefix_sum
from tests.marks import in_turn
from tests.noise.streams import BACKENDS, KEY, emit, make_stream
from tests.zoo import ONE_OF_EACH, STRATEGIES

ROOT = Toeplitz.square_root(prefix_sum(64)).coefficients


def free(n, bands):
    columns = np.random.default_rng(bands).uniform(-0.2, 0.2, (n, bands))
    columns[:, 0] = np.linspace(0.7, 1.5, n)
    for j in range(n):
        columns[j, max(1, n - j) :] = 0
    return Banded(n, columns)


#: Windows of which sums are made ahead for several steps, with ends and restarts in the midst.
LONG = {
    "8 bands": BandedToeplitz(41, ROOT[:8]),
    "64 bands": BandedToeplitz(150, ROOT),
    "free": free(45, 11),
    "normalised": ColumnNormalized(BandedToeplitz(43, ROOT[:9])),
    "restarted, cut": Restarted(BandedToeplitz(21, ROOT[:10]), 3, 50),
    "normalised restarts, cut": Restarted(ColumnNormalized(free(22, 12)), 3, 47),
    "gains over restarts": ColumnNormalized(Restarted(BandedToeplitz(21, ROOT[:10]), 3, 50)),
    "inverse": BandedInverse(60, ROOT[:20] * (-1.0) ** np.arange(20)),
    "inverse restarted": Restarted(ColumnNormalized(BandedInverse(19, ROOT[:13])), 3, 45),
}
WAYS = (
    *({"dtype": np.float64}, {"backend": "torch"}),
    *({"grid": 2.0**-30}, {"grid": 2.0**-30, "backend": "torch"}),
)


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *LONG])
@pytest.mark.few(14)
def test_a_stream_restored_at_every_step_goes_on_bit_for_bit(name):
    """In another process's stream, and nothing but what was saved is read."""
    strategy = (STRATEGIES | LONG)[name]
    again = isinstance(strategy.recurrence(), MovingAverage)
    for way in (*WAYS, *({**way, "memory": "regenerate"} for way in WAYS if again)):
        whole, other = (NoiseStream(strategy, 19, std=0.4, key=KEY, **way) for _ in range(2))
        expected, _ = emit(whole)
        state, rows = whole.init(), []
        for _ in range(strategy.n):
            saved = state.state_dict()
            state = other.restore(saved)
            assert state.step == saved["step"]
            state._memory[len(saved["rows"]) :] = np.nan
            row, state = other.next(state)
            rows.append(np.asarray(row, dtype=np.float64))
        np.testing.assert_array_equal(np.array(rows), expected, err_msg=str(way))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["banded-mixed", "blt-4", "output-momentum"])
def test_a_saved_state_is_a_copy(name, backend):
    stream = make_stream(STRATEGIES[name], 6, backend)
    whole, _ = emit(stream)
    _, state = emit(stream, count=5)
    saved = state.state_dict()
    before = np.asarray(saved["rows"]).copy()
    emit(stream, state)  # the state goes on
    np.testing.assert_array_equal(saved["rows"], before)
    for _ in range(2):  # and restoring neither uses up nor changes what was saved
        rest, _ = emit(stream, stream.restore(saved))
        np.testing.assert_array_equal(rest, whole[5:])
    np.testing.assert_array_equal(saved["rows"], before)


def test_what_is_saved_is_plain_and_can_be_loaded_with_weights_only():
    import torch

    stream = make_stream(STRATEGIES["banded-mixed"], 6, "torch", precision="float32")
    whole, _ = emit(stream)
    _, state = emit(stream, count=7)
    for saved in (state.state_dict(), state.state_dict(copy=False)):
        assert {type(value) for value in saved.values()} == {int, str, torch.Tensor}
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        rest, _ = emit(stream, stream.restore(torch.load(file, weights_only=True)))
        np.testing.assert_array_equal(rest, whole[7:])


def saved_state(strategy=None, dimension=6, backend="numpy", precision="float64", count=5, **options):
    strategy = BandedToeplitz(11, [1.0, 0.5, 0.25]) if strategy is None else strategy
    _, state = emit(make_stream(strategy, dimension, backend, precision=precision, **options), count=count)
    return state.state_dict()


@in_turn(
    ("saved", "word"),
    [
        (lambda: saved_state(dimension=7), "dimension=7"),
        (lambda: saved_state(precision="float32"), "precision='float32'"),
        (lambda: saved_state(backend="torch"), "backend='torch'"),
        (lambda: saved_state(offset=1), "offset=1"),
        (lambda: saved_state(length=5), "length=5"),
        (lambda: saved_state(std=2.0), "another std"),
        (lambda: saved_state(key=bytes(32)), "another key"),
        (lambda: saved_state(BandedToeplitz(12, [1.0, 0.5, 0.25])), "n=12"),
        (lambda: saved_state(BandedToeplitz(11, [1.0, 0.5, 0.26])), "other coefficients"),
        (lambda: saved_state(BandedToeplitz(11, [1.0, 0.5])), "other coefficients"),
        (lambda: saved_state(STRATEGIES["normalised(banded-2)"]), "other coefficients"),
        (lambda: saved_state(STRATEGIES["dense-banded"]), "other coefficients"),
        (lambda: saved_state(STRATEGIES["blt-4"]), "kind='Buffered'"),
        (lambda: saved_state(STRATEGIES["inverse-mixed"]), "kind='MovingAverage'"),
        (lambda: saved_state(cipher="ChaCha20"), "cipher"),
        (lambda: saved_state() | {"format": 3}, "format=3"),
        (lambda: saved_state() | {"format": True}, "format=True"),
    ],
)
def test_a_state_of_a_stream_that_differs_is_refused(saved, word):
    stream = make_stream(BandedToeplitz(11, [1.0, 0.5, 0.25]), 6, "numpy")
    with pytest.raises(MismatchError, match=word):
        stream.restore(saved())


@in_turn(
    ("change", "message"),
    [
        ({"step": -1}, "step=-1"),
        ({"step": 12}, "step=12"),
        ({"step": 5.0}, "step=5.0"),
        ({"step": True}, "step=True"),
        ({"step": None}, "step=None"),
        ({"step": 1}, "shape"),
        ({"rows": None}, "NoneType"),
        ({"rows": np.zeros((3, 5))}, "shape"),
        ({"rows": np.zeros((2, 6))}, "shape"),
        ({"rows": np.zeros((3, 6), np.float32)}, "float32"),
        ({"rows": [[0.0] * 6] * 3}, "list"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    stream = make_stream(BandedToeplitz(11, [1.0, 0.5, 0.25]), 6, "numpy")
    with pytest.raises(CheckpointError, match=message):
        stream.restore(saved_state() | change)
    for name in saved_state():
        with pytest.raises(CheckpointError, match=name):
            stream.restore({other: value for other, value in saved_state().items() if other != name})


def test_strategies_that_end_in_the_same_row_are_told_apart():
    c = np.zeros((6, 2))
    c[:, 0], c[:5, 1] = 1.0, 0.5
    d = c.copy()
    d[:4, 1] = -2.0
    one, other = Banded(6, c), Banded(6, d)
    for first, second in ((one, other), (Dense(one.to_dense()), Dense(other.to_dense()))):
        state = NoiseStream(first, 3, key=bytes(32)).init()
        with pytest.raises(MismatchError, match="other coefficients"):
            NoiseStream(second, 3, key=bytes(32)).restore(state.state_dict())


@pytest.mark.parametrize("grid", [None, 2.0**-20])
@pytest.mark.parametrize("name", ["banded-3", "blt-4", "toeplitz-root", "output"])
def test_fresh_rows_follow_from_the_key_of_their_step(name, grid):
    """And a stream that is told all keys goes on bit for bit from a saved state."""
    strategy, keys = STRATEGIES[name], {0: b"a" * 32, 3: b"b" * 32, 4: b"c" * 32}
    options = {"dtype": np.float64} if grid is None else {"grid": grid}

    def made():
        stream = NoiseStream(strategy, 3, key=keys[0], std=2.0, **options)
        for step, key in keys.items():
            stream.rekey(step, key)
        return stream

    stream = made()
    rows, state = stream.several(stream.init(), strategy.n)
    plain = [NoiseStream(strategy, 3, key=key, std=2.0, **options) for key in keys.values()]
    fresh = [plain[(t >= 3) + (t >= 4)].fresh(t) for t in range(strategy.n)]
    expected = 2.0 * strategy.solve(np.array(fresh)) / (1.0 if grid is None else grid)
    np.testing.assert_allclose(np.array(rows), expected, rtol=0, atol=1e-9 if grid is None else 3)
    one, left = made(), []
    state = one.init()
    for _ in range(strategy.n):
        if one.filter.rows:
            saved = state.state_dict()
            one = made()
            state = one.restore(saved)
        row, state = one.next(state)
        left.append(row)
    np.testing.assert_array_equal(rows, left)


def test_keys_change_in_the_order_of_steps():
    stream = NoiseStream(STRATEGIES["banded-3"], 3)
    stream.rekey(5, b"b" * 32)
    stream.rekey(5, b"c" * 32)
    with pytest.raises(ValueError, match="step=4 lies before 5"):
        stream.rekey(4, b"d" * 32)
    with pytest.raises(ValueError, match="exactly 32"):
        stream.rekey(6, b"short")


def test_exact_rounding_reads_earlier_rows_with_the_keys_that_they_had():
    keys = RowKeys(b"a" * 32)
    keys.change(3, b"b" * 32)
    rows = FreshRows(keys, 5, offset=2)
    for step, key in ((2, b"a" * 32), (3, b"b" * 32), (5, b"b" * 32)):
        assert rows.enclosure(step, 1, 40) == FreshRow(key, step).enclosure(3, 40)


def test_strategies_of_one_kind_are_told_apart():
    turn = [[0.24, -0.87], [0.87, 0.24]]
    systems = [([0.5, 0.1], turn), ([0.5, 0.2], turn), ([0.5, 0.1], np.transpose(turn))]
    made = [ConstantRecurrent(9, u, a, [1.0, 0.3], first) for u, a in systems for first in (1.0, 1.4)]
    made += [Tree(13), Tree(13, 3), FullTree(13), FullTree(13, 2, 14), TreeAggregation(13)]
    made += [ColumnNormalized(one) for one in made]
    for options in ({}, {"grid": 2.0**-20}):
        digests = [NoiseStream(one, 2, key=KEY, **options).identity["coefficients"] for one in made]
        assert len(set(digests)) == len(made)
