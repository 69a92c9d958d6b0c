"""The contract of an accountant: monotone, consistent, and never below what runs of its scheme show."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.accounting import Verified
from anechoic.accounting.accountant import Accountant
from anechoic.accounting.monte_carlo.verified import GROWTH
from anechoic.statement.theorem import Theorem
from anechoic.testing._compare import Contract, require, rule
from anechoic.testing.draws import check_draws, drawn_steps

DELTAS = (1e-2, 1e-4, 1e-6)
SHOWN = (0.1, 0.02)  # deltas at which epsilon is compared with what simulated runs show
KEYS, SAMPLES = 24, 20_000  # runs whose patterns are counted, and releases that are drawn
SIGMA = 5.0  # standard deviations of the simulation that are forgiven
SLACK = 0.03  # of delta: frequencies of patterns stand for their probabilities
CLOSE = 0.02  # relative: how far "about the least noise" may miss the epsilon that was asked for


def check_sentences(accountant: Accountant) -> None:
    """A theorem with a page of its proof, and sentences for the statement."""
    theorem = getattr(accountant, "theorem", None)
    require(accountant, isinstance(theorem, Theorem), "theorem is missing: say what proves epsilon")
    require(accountant, accountant.sampling.amplified, "its scheme is not amplified: it needs no accountant")
    sentences = [accountant.describe(), *accountant.evaluation(1.0)]
    said = len(sentences) == 3 and all(sentence and "\n" not in sentence for sentence in sentences)
    require(accountant, said, "describe() and evaluation() are not three sentences of one line each")


def check_monotone(accountant: Accountant, std: float) -> None:
    """bound is >= 0, falls with delta and with the noise; epsilon is never above it."""
    for noise in (0.7 * std, std, 3.0 * std):
        bounds = [accountant.bound(delta, noise) for delta in DELTAS]
        rising = all(0.0 <= a <= b * (1 + CLOSE) for a, b in pairwise(bounds))
        require(accountant, rising, f"bound at delta = {DELTAS} and std={noise} is {bounds}: it must rise")
        found = accountant.epsilon(DELTAS[0], noise)
        rule = f"epsilon={found} at std={noise} is above bound={bounds[0]}"
        require(accountant, found <= bounds[0] * (1 + 1e-9), rule)
        require(accountant, accountant.plausible(found, DELTAS[0], noise), f"{found} is called implausible")
    low, high = accountant.bound(DELTAS[1], std), accountant.bound(DELTAS[1], 2.0 * std)
    require(accountant, high <= low * (1 + 1e-9), f"twice the noise raises bound from {low} to {high}")


def check_noise(accountant: Accountant, std: float) -> None:
    """noise_std gives the epsilon that is asked for, and half of it does not.

    Where samples have to show it, with as much more noise as calibration tries.
    """
    delta = DELTAS[1]
    for asked in (0.5, accountant.epsilon(delta, std)):
        if not 0.0 < asked < math.inf:
            continue
        noise = accountant.noise_std(asked, delta)
        require(accountant, 0.0 < noise < math.inf, f"noise_std({asked}, {delta}) = {noise}")
        sampled = isinstance(accountant.accounting, Verified)
        found = accountant.epsilon(delta, noise * GROWTH[-1] if sampled else noise)
        rule = f"noise_std({asked}, {delta}) = {noise}, at which epsilon is {found}"
        require(accountant, found <= asked * (1 + CLOSE), rule)
        less = accountant.epsilon(delta, noise / 2)
        require(accountant, less > asked, f"{rule}; half of that noise gives {less} already")


def check_sound(accountant: Accountant, std: float, seed: int = 0) -> None:
    """At the epsilon of the accountant, delta is not below that of simulated runs.

    A unit whose contributions are all 1 takes part as it does in the batches that the library draws; the
    release C 1_pi + std Z against std Z, which patterns are not told, has (epsilon, delta) of its own.
    """
    rng = np.random.default_rng(seed)
    patterns, weights = _patterns(accountant)
    means = accountant.strategy.multiply(patterns.T.astype(np.float64)) / std  # (rows, patterns)
    opposite = accountant.adjacency == "replace_one"
    for delta in SHOWN:
        epsilon = accountant.epsilon(delta, std)
        for one, other in ((means, -means if opposite else 0.0 * means), (0.0 * means, means)):
            if opposite and other is means:
                continue  # the same by symmetry
            drawn = one[:, rng.choice(len(weights), size=SAMPLES, p=weights)]
            y = drawn + rng.standard_normal(drawn.shape)
            losses = _log_density(y, one, weights) - _log_density(y, other, weights)
            excess = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
            shown = float(excess.mean() - SIGMA * excess.std() / math.sqrt(SAMPLES))
            rule = f"epsilon={epsilon:.6g} at delta={delta}, std={std}, but runs show a delta of {shown:.4g}"
            require(accountant, shown <= delta * (1 + SLACK), rule)


def check_term(accountant: Accountant, std: float) -> None:
    """Composed with nothing else, the term of one run says no less than a run alone, about."""
    delta = DELTAS[1]
    if not accountant.hides:
        return
    mu = 10.0  # so that what is known without amplification is no help
    term = accountant.term(delta, std, mu, verified=False)
    alone = accountant.bound(delta, std)
    require(accountant, term.reach > 0, f"term().reach={term.reach} is not > 0")
    width = max(alone, 0.1) / 1000
    pair, times = term.pair(width)
    found = pair.self_compose(times).get_epsilon_for_delta(delta)
    rule = f"the term of one run has epsilon={found} at delta={delta}, the run alone {alone}"
    require(accountant, found >= alone * (1 - CLOSE) - 10 * width, rule)


def _patterns(accountant: Accountant) -> tuple[Array, Array]:
    """Patterns that units have in runs of the scheme, shape (patterns, n), and how often."""
    taken = drawn_steps(accountant.sampling, KEYS)
    rows = taken.reshape(-1, taken.shape[-1])
    patterns, counts = np.unique(rows, axis=0, return_counts=True)
    return patterns, counts / counts.sum()


def _log_density(y: Array, means: Array, weights: Array) -> Array:
    """log of the mixture of N(mean, 1) at the columns of y, up to a constant; shape (samples,)."""
    exponents = means.T @ y - 0.5 * np.square(means).sum(axis=0)[:, None]
    return np.asarray(logsumexp(exponents, axis=0, b=weights[:, None]))


class AccountantContract(Contract[Accountant]):
    """Tests of an accountant, for pytest: inherit it in a class named Test…, and give `accountants`.

    Give one of a single step, one of correlated noise if it is covered, and every adjacency.

    Attributes:
        std: a noise std, in clip norms, at which epsilon is about 1.
        seed: of the simulation.
    """

    gives = "accountants"
    serialized = False  # no file holds one
    std = 1.0

    def accountants(self) -> Iterable[Accountant]:
        """The accountants to test, of few steps and some hundreds of units."""
        raise NotImplementedError(
            "give accountants(): the accountants to test, one of a single step among them."
        )

    test_it_says_what_proves_it = rule(check_sentences)
    test_epsilon_falls_with_delta_and_with_noise = rule(check_monotone, "std")
    test_the_noise_that_is_found_gives_epsilon = rule(check_noise, "std")
    test_who_is_in_is_drawn_by_the_key = rule(lambda accountant: check_draws(accountant.sampling))
    test_epsilon_is_not_below_what_simulated_runs_show = rule(check_sound, "std", "seed")
    test_its_term_of_a_composition_is_not_below_one_run = rule(check_term, "std")
