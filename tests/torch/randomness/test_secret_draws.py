"""Draws of a step: laws that are right, repeated from a state, and of no use for telling others."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from anechoic.torch.randomness import modes
from anechoic.torch.generators import fix, is_secret, marked, restore, states
from anechoic.torch.randomness.modes import SecretDraws
from tests.torch.setting import mechanism, network, start, step

DRAWS = {
    "rand": lambda: torch.rand(5, 3),
    "rand, double": lambda: torch.rand(7, dtype=torch.float64),
    "rand, bfloat16": lambda: torch.rand(7, dtype=torch.bfloat16),
    "rand_like": lambda: torch.rand_like(torch.ones(4)),
    "randn": lambda: torch.randn(7),
    "randn_like": lambda: torch.randn_like(torch.ones(2, 2, dtype=torch.float64)),
    "randint": lambda: torch.randint(3, 9, (40,)),
    "randint from 0": lambda: torch.randint(5, (3,)),
    "randint_like": lambda: torch.randint_like(torch.ones(4), 9),
    "uniform_": lambda: torch.empty(6, 2).t().uniform_(-1, 1),
    "normal_": lambda: torch.empty(5).normal_(2, 0.1),
    "normal": lambda: torch.normal(torch.zeros(3), torch.ones(3)),
    "random_": lambda: torch.empty(9, dtype=torch.uint8).random_(),
    "random_, float": lambda: torch.empty(9).random_(),
    "random_ to": lambda: torch.empty(9, dtype=torch.int64).random_(10),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.5)),
    "bernoulli_": lambda: torch.empty(50).bernoulli_(0.5),
    "bernoulli_, each its own": lambda: torch.empty(50).bernoulli_(torch.linspace(0, 1, 50)),
    "dropout": lambda: F.dropout(torch.ones(60), 0.5),
    "attention": lambda: F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 4, 8).cumsum(2)] * 3, dropout_p=0.5
    ),
    "randperm": lambda: torch.randperm(30),
    "multinomial": lambda: torch.multinomial(torch.ones(30), 5),
    "exponential_": lambda: torch.empty(5).exponential_(),
}


@pytest.fixture
def draws():
    before = states(cuda=False)
    fix(bytes([3]) * 32, cuda=False, secret=True)
    modes.start()
    yield modes
    modes.stop()
    restore(before)


@pytest.mark.parametrize("name", DRAWS)
def test_a_state_that_is_set_back_draws_the_same_again(name, draws):
    before = torch.get_rng_state()
    first = DRAWS[name]()
    after = torch.get_rng_state()
    second = DRAWS[name]()
    torch.set_rng_state(before)
    assert torch.equal(DRAWS[name](), first)
    assert torch.equal(torch.get_rng_state(), after) and not torch.equal(after, before)
    if first.numel() >= 5:
        assert not torch.equal(first, second)
    draws.stop()
    torch.set_rng_state(before)
    plain = DRAWS[name]()
    assert (plain.dtype, plain.shape) == (first.dtype, first.shape)


def test_numbers_have_their_laws(draws):
    m = 200_000
    for drawn, law in (
        (torch.rand(m), stats.uniform()),
        (torch.rand(m, dtype=torch.float64), stats.uniform()),
        (torch.empty(m).uniform_(-1, 3), stats.uniform(-1, 4)),
        (torch.randn(m), stats.norm()),
        (torch.empty(m).normal_(2, 0.1), stats.norm(2, 0.1)),
        (torch.empty(m).exponential_(), stats.expon()),
    ):
        assert stats.kstest(drawn.numpy(), law.cdf).pvalue > 1e-4
    assert stats.chisquare(np.bincount(torch.randint(3, 9, (m,)).numpy() - 3)).pvalue > 1e-4
    assert (
        stats.chisquare(np.bincount(torch.empty(m, dtype=torch.uint8).random_().numpy())[:255]).pvalue > 1e-4
    )
    chances = torch.linspace(0, 1, 11)
    coins = torch.bernoulli(chances.repeat(20_000, 1)).mean(0)
    assert (coins - chances).abs().max() < 5 * 0.5 / np.sqrt(20_000)
    assert coins[0] == 0 and coins[-1] == 1
    kept = F.dropout(torch.full((m,), 2.0), 0.3)
    assert kept.unique().tolist() == pytest.approx([0.0, 2 / 0.7])
    assert abs(float((kept > 0).double().mean()) - 0.7) < 5 * np.sqrt(0.21 / m)
    x = torch.ones(5, requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert F.dropout(torch.ones(0, 3), 0.5).shape == (0, 3)
    assert torch.rand(10**5).max() < 1 and torch.rand(10**5, dtype=torch.bfloat16).max() < 1


def _known_next(drawn):
    """How many of the numbers after the first 624 a Mersenne Twister makes that made those."""
    words = drawn.astype(np.uint64)
    state = []
    for y in words[:624].tolist():
        y ^= y >> 18
        y ^= (y << 15) & 0xEFC60000
        whole = y
        for _ in range(5):
            whole = y ^ ((whole << 7) & 0x9D2C5680)
        y = top = whole & 0xFFFFFFFF
        for _ in range(3):
            top = y ^ (top >> 11)
        state.append(top & 0xFFFFFFFF)
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(state, np.uint32), "pos": 624}}
    return int((twister.random_raw(len(words) - 624) == words[624:]).sum())


def test_nothing_that_was_drawn_tells_what_comes(draws):
    def whole(count):  # two words of 32 bits each, the upper first
        found = torch.empty(count, dtype=torch.int64).random_(-(2**63), None).numpy().view(np.uint32)
        return found.reshape(-1, 2)[:, ::-1].ravel()

    def several():  # one call, and many
        return whole(500), np.concatenate([whole(1) for _ in range(500)])

    draws.stop()
    assert [_known_next(found) for found in several()] == [376, 376]  # what this is about
    draws.start()
    assert [_known_next(found) for found in several()] == [0, 0]


def test_the_global_generator_may_be_named(draws):
    before = torch.get_rng_state()
    first = torch.rand(4)
    torch.set_rng_state(before)
    assert torch.equal(torch.rand(4, generator=torch.default_generator), first)


def test_what_a_script_seeds_is_drawn_as_ever(draws):
    torch.manual_seed(0)
    seeded = torch.nn.Linear(3, 2).weight
    draws.stop()
    torch.manual_seed(0)
    assert torch.equal(torch.nn.Linear(3, 2).weight, seeded)


def test_no_seed_of_a_script_is_taken_for_a_secret():
    seeds = [*range(100_000), *(2**k + d for k in range(64) for d in (-1, 0, 1)), 20260714, -1]
    assert not any(map(is_secret, seeds))
    assert all(is_secret(marked(number)) for number in seeds)


@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_runs_draw_so_from_delivery_to_step(mode):
    def active():
        return any(isinstance(one, SecretDraws) for one in _get_current_dispatch_mode_stack())

    torch.manual_seed(0)  # the script's own state, which no other test has left
    run = start(mode, mech=mechanism(steps=3), model=network(dropout=0.5))
    for batch in run.loader:
        assert active() and is_secret(torch.initial_seed())
        step(run, batch)
        assert not is_secret(torch.initial_seed())  # what is drawn then is what the script seeded
    assert not active()
    assert run.engine.releases == 3
