"""Attacks on what a run releases, by an observer who has the releases or the models and knows the rest.

Nothing here is given to the attack that the statement's observer does not have.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.gaussian import LARGEST
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, Identity
from tests.noise.test_linear_attack import predictions, shortest_recurrence
from tests.torch.setting import private

ROWS, BLACK, SEEN, RATE = 24, 700, 100, 0.125


def images():
    """Images of which the first pixels are black, always, as at the edge of digits."""
    x = torch.rand(ROWS, BLACK + SEEN, generator=torch.Generator().manual_seed(1))
    x[:, :BLACK] = 0
    return x


def run(mechanism, x, mode="rows"):
    """(models before and after each step, gradients that were released), of two steps."""
    torch.manual_seed(0)
    model = nn.Linear(x.shape[1], 10, bias=False)
    loader = DataLoader(TensorDataset(x, torch.arange(len(x)) % 10), batch_size=len(x))
    out = private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE), loader=loader,
        grad_sample_mode=mode, poisson_sampling=False, mechanism=mechanism,
    )  # fmt: skip
    module, optimizer, loader = out[0], out[1], out[-1]
    criterion = out[2] if len(out) == 4 else F.cross_entropy
    models, released = [model.weight.detach().clone()], []
    while len(released) < mechanism.steps:
        for batch, y in loader:
            optimizer.zero_grad()
            criterion(module(batch), y).backward()
            optimizer.step()
            models.append(model.weight.detach().clone())
            released.append(model.weight.grad.clone())
    return models, released


def check_coins(bits):
    """The bits have no linear recurrence that is shorter than half of them, and none that predicts."""
    known = len(bits) - 200
    assert abs(shortest_recurrence(bits[:known])[0] - known / 2) < 40
    right = sum(a == b for a, b in zip(predictions(bits, known), bits[known:], strict=True))
    assert abs(right - 100) < 5.5 * math.sqrt(200) / 2


@pytest.mark.parametrize("strategy", [Identity(2), BandedToeplitz(2, [1.0, 0.5])])
@pytest.mark.parametrize("seen", ["releases", "models"])
def test_noise_under_a_zero_gradient_does_not_give_away_the_rest(seen, strategy):
    mechanism = an.calibrate(strategy, sampling=FixedOrder(ROWS, ROWS, 2), epsilon=2.0, delta=1e-5)
    models, released = run(mechanism, images())
    gradient = released[0] if seen == "releases" else (models[0] - models[1]) / RATE
    noise = gradient[:, :BLACK].double() * (ROWS / mechanism.noise_std)
    row = noise.flatten().numpy()
    assert abs(row.std() - 1) < 0.05  # there is no gradient in it
    check_coins(sign_bits(row))


def sign_bits(row):
    return (row < 0).astype(int).tolist()


def single_rows(weight, x):
    """The gradient of each row's loss, by hand, shape (rows, 10, entries)."""
    slopes = torch.softmax(x @ weight.T, 1) - F.one_hot(torch.arange(len(x)) % 10, 10)
    return torch.einsum("bk,bi->bki", slopes, x).double()


def test_a_guess_that_is_right_leaves_noise_without_a_law():
    """Whoever knows all other data and guesses right is left with noise: nothing in it confirms the guess."""
    mechanism = Mechanism(Identity(1), FixedOrder(ROWS, ROWS, 1), 0.01)
    x = torch.rand(ROWS, BLACK, generator=torch.Generator().manual_seed(1)) / 30
    models, (release,) = run(mechanism, x)
    each = single_rows(models[0], x)
    assert each.flatten(1).norm(dim=1).max() < 1, "nothing is clipped"
    for kept in (slice(None), slice(1, None)):  # row 0 is in, or out
        left = (release.double() * ROWS - each[kept].sum(0)) / 0.01
        row = left.flatten().numpy()
        assert kept.start or stats.kstest(row, "norm").pvalue > 1e-7
        check_coins(sign_bits(row)[:4000])


def test_these_observers_would_see_a_linear_generator():
    state, bits = 88172645463325252, []
    for _ in range(4000):  # xorshift of 64 bits
        state ^= state << 13 & 2**64 - 1
        state ^= state >> 7
        state ^= state << 17 & 2**64 - 1
        bits.append(state & 1)
    assert shortest_recurrence(bits[:3800])[0] <= 64
    with pytest.raises(AssertionError):
        check_coins(bits)


def test_a_record_reaches_no_number_that_noise_alone_does_not():
    """Noise that ends at 5.77 standard deviations, as of 24 random bits, gave 12 times delta away here."""
    mechanism = an.calibrate(Identity(1), sampling=FixedOrder(8, 8, 1), epsilon=8.0, delta=1e-6)
    shift = 1 / mechanism.noise_std
    ends = math.sqrt(48 * math.log(2))
    assert stats.norm.sf(ends - shift) > 10 * mechanism.delta, "the attack works on a short tail"
    assert stats.norm.sf(LARGEST - shift) < 1e-60 * mechanism.delta


@pytest.mark.parametrize("mode", ["rows", "vmap_loss", "ghost"])
@pytest.mark.parametrize("clip", [1e-12, 1e-8, 1e-6])
@pytest.mark.few(6)
def test_tiny_clip_norms_keep_the_signal(clip, mode):
    mechanism = Mechanism(Identity(1), FixedOrder(ROWS, ROWS, 1), 1e-9, clip_norm=clip)
    x = images()[:, BLACK - 5 : BLACK + 5]
    models, (release,) = run(mechanism, x, mode)
    each = single_rows(models[0], x)
    expected = (each / each.flatten(1).norm(dim=1)[:, None, None]).sum(0)
    found = release.double() * (ROWS / clip)
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
