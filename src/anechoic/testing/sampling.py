"""The contract of a sampling scheme: what it promises, against the batches that are formed under it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from anechoic.accounting.accountant import accountant_of
from anechoic.batches.base import Batches, batches_of
from anechoic.errors import UnsupportedError
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling
from anechoic.strategies import Identity
from anechoic.testing._compare import Contract, check_no_blocks, require, rule
from anechoic.testing.draws import check_draws

KEYS = 48  # runs whose batches are looked at
SIGMA = 6.0  # standard deviations that a mean over runs may be off
SPREAD = (0.3, 2.6)  # of a variance of sizes over `KEYS` runs, to that of independent units


def check_record(sampling: Sampling) -> None:
    """Steps, sizes, participation and sentences are of the kinds that everything else relies on."""
    n, size, examples = sampling.steps, sampling.batch_size, sampling.examples
    require(sampling, isinstance(n, int) and n >= 1, f"steps={n!r} is no whole number >= 1")
    require(sampling, math.isfinite(size) and size > 0, f"batch_size={size!r} is no number > 0")
    divisor = sampling.expected_batch_size
    require(sampling, math.isfinite(divisor) and divisor > 0, f"expected_batch_size={divisor!r} is not > 0")
    enough = sampling.formed_outside or (isinstance(examples, int) and examples >= size)
    require(sampling, enough, f"examples={examples!r} is no whole number of at least batch_size={size}")
    require(sampling, isinstance(sampling.participation, Participation), "participation is no Participation")
    groups = sampling.public_groups
    require(sampling, isinstance(groups, int) and groups >= 1, f"public_groups={groups!r} is not >= 1")
    outside = sampling.formed_outside and sampling.amplified
    require(sampling, not outside, "amplified, but nobody here draws the batches in secret")
    for unit in ("example", "user"):
        sentence = sampling.describe(unit)
        require(sampling, bool(sentence) and "\n" not in sentence, f"describe({unit!r}) is not one line")
    require(sampling, "user" in sampling.describe("user"), "describe('user') does not name the unit")


def check_leading_steps(sampling: Sampling) -> None:
    """truncate(t) has t steps, the same batch size, and a participation that the whole allows."""
    n, whole = sampling.steps, sampling.participation.together(sampling.steps)
    for steps in {1, max(1, n // 2), max(1, n - 1), n}:
        first = sampling.truncate(steps)
        same = first.batch_size == sampling.batch_size and first.amplified == sampling.amplified
        same &= all(first.expected_size(t) == sampling.expected_size(t) for t in (0, steps - 1))
        require(sampling, same, f"truncate({steps}) changed batch_size, expected_size or amplified")
        more = first.participation.together(steps) & ~whole[:steps, :steps]
        rule = f"truncate({steps}) lets one unit touch {np.argwhere(more)[:1].tolist()}, the whole does not"
        require(sampling, not more.any(), rule)
    check_no_blocks(sampling, n)


def check_batches(sampling: Sampling) -> None:
    """Batches are a function of key and step, hold units at most once, and keep the participation.

    A scheme without batches of its own is refused by name; it has to be, where it is formed outside.
    """
    examples, n = sampling.examples, sampling.steps
    for number in range(3):
        batches = _batches(sampling, number)
        if batches is None or examples is None:
            return
        require(sampling, not sampling.formed_outside, "formed outside, but the library has its batches")
        accounts = accounts_of(sampling.participation, examples, n)
        drawn = []
        for t in range(n):
            batch = batches.batch(t)
            inside = not len(batch) or (int(batch.min()) >= 0 and int(batch.max()) < examples)
            require(sampling, inside, f"batch {t} names a unit outside of 0 … {examples - 1}")
            require(sampling, len(np.unique(batch)) == len(batch), f"batch {t} holds a unit twice")
            kept = f"batch {t} breaks the participation: {sampling.participation.describe()}"
            require(sampling, bool(accounts.admit(t, batch).all()), kept)
            drawn.append(batch)
        again = _batches(sampling, number)
        for t in reversed(range(n)):
            same = again is not None and np.array_equal(again.batch(t), drawn[t])
            require(sampling, same, f"batch {t} is not a function of the key and the step")


def check_sizes(sampling: Sampling) -> None:
    """Batches of a scheme that amplifies hold as many units on average as it says; of another one, at most B.

    Where `moves_others` is False units are drawn independently, so that sizes are binomial.
    """
    first = _batches(sampling, 0)
    examples, size = sampling.examples, float(sampling.batch_size)
    if first is None or examples is None:
        return
    if not sampling.amplified:
        for t in range(sampling.steps):
            count = len(first.batch(t))
            require(sampling, count <= size, f"batch {t} holds {count} units, more than batch_size={size}")
        return
    sizes = np.array([_sizes(sampling, number) for number in range(KEYS)])
    expected = np.array([float(sampling.expected_size(t)) for t in range(sampling.steps)])
    for size in np.unique(expected):
        means = sizes[:, expected == size].mean(axis=1)
        error = means.std() / math.sqrt(KEYS) + 1e-9 * size
        rule = f"batches hold {means.mean():.4g} units on average over {KEYS} runs, promised {size:.4g}"
        require(sampling, abs(means.mean() - size) <= SIGMA * error, rule)
    size = float(expected[0])
    share = size / examples
    if sampling.moves_others or not 0.0 < share < 1.0 or size * (1.0 - share) < 2.0:
        return
    ratio = sizes[:, 0].var() / (size * (1.0 - share))
    rule = (
        f"moves_others is False, but over {KEYS} runs the first batch varies {ratio:.3g} times as much as"
        " that of units that are drawn independently"
    )
    require(sampling, SPREAD[0] <= ratio <= SPREAD[1], rule)


def check_accounted(sampling: Sampling) -> None:
    """A scheme that amplifies has an accountant, or is refused by name; another one has none."""
    try:
        found = accountant_of(sampling, Identity(sampling.steps), "zero_out", "deterministic")
    except UnsupportedError as refused:
        named = type(sampling).__name__ in str(refused)
        require(sampling, named, f"an accountant is refused without the scheme's name: {refused}")
        return
    rule = f"amplified={sampling.amplified}, but its accountant is {type(found).__name__}"
    require(sampling, (found is not None) == sampling.amplified, rule)


def _batches(sampling: Sampling, number: int) -> Batches | None:
    """Of run `number`; None where the scheme has none, which it must be refused for by name."""
    try:
        return batches_of(sampling, number.to_bytes(32, "big"))
    except UnsupportedError as refused:
        named = type(sampling).__name__ in str(refused)
        require(sampling, named, f"batches are refused without the scheme's name: {refused}")
        return None


def _sizes(sampling: Sampling, number: int) -> list[int]:
    batches = batches_of(sampling, number.to_bytes(32, "big"))
    return [len(batches.batch(t)) for t in range(sampling.steps)]


class SamplingContract(Contract[Sampling]):
    """Tests of a sampling scheme, for pytest: inherit it in a class named Test…, and give `schemes`.

    Give at least one step, an odd number of steps, and examples that the batch size does not divide.

    Attributes:
        serialized: whether schemes must survive a round trip through JSON.
    """

    gives = "schemes"

    def schemes(self) -> Iterable[Sampling]:
        """The schemes to test, of few steps and some dozens of examples."""
        raise NotImplementedError("give schemes(): the schemes to test, one of a single step among them.")

    test_the_record_says_what_every_scheme_says = rule(check_record)
    test_truncate_is_the_scheme_of_the_first_steps = rule(check_leading_steps)
    test_batches_keep_the_participation = rule(check_batches)
    test_batches_have_the_promised_sizes = rule(check_sizes)
    test_who_is_in_is_drawn_by_the_key = rule(check_draws)
    test_it_is_accounted_for_or_refused_by_name = rule(check_accounted)
