"""A private step as plain functions, against loops over rows, an engine's page, and hostile rows."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic.functional import clip_and_sum, clipped_sum, unflatten

torch = pytest.importorskip("torch", reason="an extra installs it")


def by_loop(rows, clip):
    total = 0.0
    for row in rows.astype(np.float64):
        if np.isfinite(row).all():
            norm = math.sqrt(math.fsum(v * v for v in row)) if np.abs(row).max() < 1e150 else math.inf
            total = total + (row if norm <= clip else row * (clip / norm) if norm < math.inf else 0 * row)
    return total


@pytest.mark.parametrize("kind", [np.array, lambda rows: torch.tensor(rows)])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e3])
def test_sums_are_those_of_a_loop_over_rows(kind, clip):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((9, 7)) * np.geomspace(1e-4, 1e4, 9)[:, None]
    rows[4, 2], rows[5, 1] = np.nan, np.inf
    found = np.asarray(clip_and_sum(kind(rows), clip))
    np.testing.assert_allclose(found, by_loop(rows, clip), rtol=1e-9, atol=1e-12)
    parts = {"a": kind(rows[:, :2].reshape(9, 2, 1)), "b": kind(rows[:, 2:])}
    np.testing.assert_allclose(np.asarray(clip_and_sum(parts, clip)), found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(kind):
    rng = np.random.default_rng(1)
    for size in (1e-300, 1e-30, 1.0, 1e30, 1e300, math.inf, math.nan):
        with np.errstate(over="ignore", invalid="ignore"):
            row = (size * (1 + rng.random((1, 500)))).astype(kind)
        for given in (row, torch.tensor(row)):
            found = np.asarray(clip_and_sum(given, 1.0), dtype=np.float64)
            assert np.linalg.norm(found) <= 1 + 1e-6 and np.isfinite(found).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_one_row_of_many_moves_a_sum_by_its_clipped_norm(kind):
    for rows in (1020, 4097):
        sums = [clip_and_sum(torch.ones(count, 1).to(kind), 1.0) for count in (rows, rows + 1)]
        assert abs(float(sums[1] - sums[0]) - 1) < 1e-3 and sums[0].dtype.itemsize >= 4


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_no_rows_and_no_entries_are_sums_too(kind):
    assert clip_and_sum(kind((0, 3)), 1.0).shape == (3,) and clip_and_sum(kind((2, 0)), 1.0).shape == (0,)
    assert clip_and_sum([kind((2, 0)), kind((2, 4))], 1.0).shape == (4,)
    wide = np.ones((2, 3), np.longdouble)
    wide[0] *= np.longdouble("1e400")
    with np.errstate(over="ignore"):
        assert np.allclose(clip_and_sum(wide, 1.0), 3**-0.5)


def test_a_loss_of_one_row_has_the_gradients_of_a_loop():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    parameters = dict(model.named_parameters())
    x, y = torch.randn(8, 5), torch.randint(3, (8,))

    def loss(weights, row, label):
        logits = torch.func.functional_call(model, weights, (row,))
        return torch.nn.functional.cross_entropy(logits, label)

    expected = 0.0
    for row, label in zip(x, y, strict=True):
        parts = torch.autograd.grad(loss(parameters, row, label), list(parameters.values()))
        flat = torch.cat([part.reshape(-1) for part in parts]).double()
        expected = expected + flat * min(1.0, 0.7 / float(flat.norm()))
    found = clipped_sum(loss, parameters, (x, y), 0.7)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert not clipped_sum(loss, parameters, (x[:0], y[:0]), 0.7).any()
    shapes = {name: part.shape for name, part in unflatten(found, parameters).items()}
    assert shapes == {name: p.shape for name, p in parameters.items()}


def test_a_whole_training_learns_and_its_noise_is_that_of_the_mechanism():
    mechanism = an.calibrate(
        an.strategies.Identity(60), sampling=an.sampling.FixedOrder(600, 20, 2), epsilon=8.0, delta=1e-5
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 10))
    y = np.sign(x @ np.arange(-4.5, 5))
    stream = mechanism.stream(10, dtype=np.float64, key=bytes(32))
    state, theta = stream.init(), np.zeros(10)
    for t in range(mechanism.steps):
        rows = slice(20 * (t % 30), 20 * (t % 30) + 20)
        slopes = -y[rows] / (1 + np.exp(y[rows] * (x[rows] @ theta)))
        total = clip_and_sum(slopes[:, None] * x[rows], mechanism.clip_norm)
        noise, state = stream.next(state)
        theta = theta - 0.5 * (total + noise) / mechanism.expected_batch_size
    assert np.mean(np.sign(x @ theta) == y) > 0.8


def test_arrays_of_jax_are_read():
    jax = pytest.importorskip("jax", reason="examples/jax_optax.py needs it")
    rows = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    np.testing.assert_allclose(clip_and_sum(jax.numpy.asarray(rows), 1.0), clip_and_sum(rows, 1.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: clip_and_sum(np.ones((2, 3)), 0.0), "clip_norm=0.0"),
        (lambda: clip_and_sum([np.ones((2, 3)), np.ones((3, 1))], 1.0), r"\[2, 3\] rows"),
        (lambda: unflatten(np.ones(3), np.ones((2, 2))), "3 entries, and the parameters 4"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
