"""No input hangs, takes gigabytes, or ends in an error that is not ours.

A call may return or refuse in our words: a ValueError or an ArithmeticError that was raised in this library.
It may not take more than ten seconds of the processor, or 2 GiB, or end in an error of NumPy's or Python's.
Ranges of sampled runs leave out rates below 1e-4, and noise below 0.5 that is given, where accounting alone
takes longer than that.
"""

import math
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import anechoic as an
from anechoic import accounting, lower_bounds, optimize, sampling
from anechoic import strategies as s
from anechoic import workloads as w
from anechoic.accounting.random_allocation import epsilon as allocation
from anechoic.errors import AnechoicError
from anechoic.losses.dispatch import loss
from anechoic.lower_bounds import prefix_sums
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sensitivity.dispatch import sensitivity

SECONDS, BYTES = 10, 2 << 30
COUNT = int(os.environ.get("ANECHOIC_FUZZ", "4000"))  # calls of the slow test; 100,000 take hours
PYTHONS = ("math domain error", "cannot convert float")  # words of Python's own, at a line of ours
SOURCE = Path(an.__file__).parent
ODD = [0, -1, 1, 0.0, -0.0, 0.5, 1.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, 5e-324, 2**31]
ODD += [10**19, None, "1", True, np.float64(0.3), np.int64(3), np.array([1.0, 2.0]), [], 1j]


class TooSlow(Exception):
    """A call took more than its ten seconds of the processor."""


class Drawer:
    """Arguments from a generator: mostly sensible, some at the ends, some no number at all."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def of(self, *values):
        return values[int(self.rng.integers(len(values)))]

    def odd(self, value, share=0.05):
        return self.of(*ODD) if self.rng.random() < share else value

    def number(self, low, high):
        return self.odd(float(10.0 ** self.rng.uniform(math.log10(low), math.log10(high))))

    def whole(self, low, high):
        return self.odd(round(10.0 ** self.rng.uniform(math.log10(low), math.log10(high))))

    def size(self, most=12):
        return int(self.rng.integers(1, most + 1))

    def count(self, most):
        return self.odd(self.size(most))

    def vector(self, n):
        scale = 10.0 ** self.rng.uniform(-6, 6) if self.rng.random() < 0.2 else 1.0
        x = scale * self.rng.standard_normal(n) * (self.rng.random(n) < 0.8)
        kind = self.rng.random()
        if kind < 0.3:
            x = np.abs(x)
        if kind > 0.97 and n:
            x[int(self.rng.integers(n))] = self.of(math.nan, math.inf, 1e300, 1e-300)
        return x

    def column(self, most):
        return np.append(1.0, self.vector(self.size(most) - 1))

    def lower(self, n):
        return np.tril(self.rng.standard_normal((n, n)))

    def workload(self, n):
        return self.of(
            lambda: w.prefix_sum(n),
            lambda: w.momentum(n, self.number(0.01, 0.999)),
            lambda: w.nesterov(n, self.number(0.01, 0.999)),
            lambda: w.exponential_decay(n, self.number(0.01, 1.0)),
            lambda: w.sliding_window(n, self.count(n)),
            lambda: w.scheduled(w.prefix_sum(n), self.vector(n)),
            lambda: w.restart_differences(w.prefix_sum(n), period=self.count(n)),
            lambda: w.from_coefficients(self.vector(n), n),
            lambda: w.from_dense(self.lower(n) * self.of(1.0, 1e-9, 1e9) + np.eye(n)),
        )()

    def participation(self, n):
        return self.of(
            Single,
            FullBatch,
            lambda: Cyclic(self.count(n)),
            lambda: MinSep(self.count(n), self.odd(self.of(None, 1, 2, 3))),
            lambda: OncePerEpoch(self.count(n)),
            lambda: Patterns(
                [sorted(set(self.rng.integers(0, n + 1, self.size(3)).tolist())) for _ in range(self.size(4))]
            ),
        )()

    def kind(self, n):
        kind = self.of("rms", "rms", "max", "last", "median", "weights")
        return self.odd(np.abs(self.vector(n)) if kind == "weights" else kind, 0.02)

    def strategy(self, n):
        return self.of(
            lambda: s.Identity(n),
            lambda: s.Toeplitz(n, self.vector(n)),
            lambda: s.BandedToeplitz(n, self.column(4)),
            lambda: s.BandedInverse(n, self.column(3)),
            lambda: s.Dense(self.lower(n) + np.eye(n) * self.of(0.0, 1.0, 1e-9, 1e9)),
            lambda: s.BLT(n, np.abs(self.vector(2)), self.rng.random(2)),
            lambda: s.ColumnNormalized(s.BandedToeplitz(n, np.abs(self.column(4)))),
            lambda: s.FullTree(n),
        )()

    def sampling(self, n):
        examples = self.whole(1, 1e6)
        return self.of(
            lambda: sampling.Poisson(examples, self.whole(1, 1e4), n),
            lambda: sampling.CyclicPoisson(examples, self.whole(1, 1e4), self.size(n), n),
            lambda: sampling.BallsInBins(examples, self.whole(1, 50), n),
            lambda: sampling.RandomAllocation(examples, self.whole(1, 1e3), n),
        )()

    # -- calls ----------------------------------------------------------------------------------

    def gaussian(self):
        f = self.of(accounting.gaussian_epsilon, accounting.gaussian_delta, accounting.gaussian_mu)
        return f(self.number(1e-12, 0.99), self.number(1e-4, 1e4))

    def poisson(self):
        rest = (self.number(1e-4, 1.0), self.whole(1, 1e4))
        how = {"adjacency": self.odd(self.of("zero_out", "add_or_remove", "replace_one"), 0.02)}
        if self.rng.random() < 0.95:
            return accounting.poisson_epsilon(self.number(1e-12, 0.99), self.number(0.5, 1e3), *rest, **how)
        return accounting.poisson_noise_multiplier(
            self.number(1e-2, 1e2), self.number(1e-12, 0.5), *rest, **how
        )

    def allocation(self):
        rest = (self.whole(1, 200), self.whole(1, 500))
        if self.rng.random() < 0.95:
            return allocation.random_allocation_epsilon(
                self.number(1e-12, 0.99), self.number(0.5, 1e3), *rest
            )
        return allocation.random_allocation_noise_multiplier(
            self.number(0.3, 1e2), self.number(1e-12, 0.5), *rest
        )

    def calibration(self):
        n = self.size()
        strategy, scheme = self.strategy(n), self.sampling(n)
        how = {"adjacency": self.of("zero_out", "add_or_remove", "replace_one")}
        how["delta"] = self.number(1e-12, 0.9)
        if self.rng.random() < 0.3:
            return an.calibrate(strategy, sampling=scheme, epsilon=self.number(1e-2, 1e2), **how).noise_std
        made = an.Mechanism(strategy, scheme, self.number(1e-3, 1e3), **how)
        return made.epsilon(steps=int(self.rng.integers(0, n + 1)))

    def sensitivities(self):
        n = self.size()
        return sensitivity(self.strategy(n), self.participation(n)).value

    def losses(self):
        n = self.size()
        return loss(self.workload(n), self.strategy(n), self.participation(n), self.kind(n))

    def bounds(self):
        n = self.size(8)
        if self.rng.random() < 0.3:
            kind = self.of("mathias_lower", "mathias_upper", "logarithmic_lower", "logarithmic_upper")
            f = self.of(lower_bounds.prefix_sum_lower_bound, getattr(prefix_sums, f"{kind}_bound"))
            return f(self.whole(1, 1e7))
        return lower_bounds.lower_bound(self.workload(n), self.participation(n), self.kind(n))

    def optimisers(self):
        n = self.size(6)
        workload, how = self.workload(n), {"loss": self.kind(n)}
        if self.rng.random() < 0.9:
            how["participation"] = self.participation(n)
        name, options = self.of(
            ("banded", {"bands": self.count(n)}),
            ("banded_inverse", {"bands": self.count(n)}),
            ("banded_toeplitz", {"bands": self.count(n)}),
            ("blt", {"buffers": self.odd(self.of(None, 1, 2))}),
            ("dense", {"gap": self.odd(self.of(None, 1e-3))}),
            ("toeplitz", {}),
            ("dense_bound", {"gap": self.odd(1e-4)}),
        )
        if name == "dense_bound":
            how.pop("participation", None)
        return getattr(optimize, name)(workload, **options, **how)

    def bins(self):
        n = self.size(8)
        how = {"bins": self.count(20), "bands": self.count(n), "samples": 500, "rounds": 1}
        given = {"epsilon": self.number(1e-2, 1e2), "delta": self.number(1e-9, 0.5)}
        return optimize.balls_in_bins(self.workload(n), **how, **given)

    def selections(self):
        """Few of them, as an epsilon takes up to a second, and the search for the noise some fifteen."""
        n = self.size(4)
        made = [
            an.Mechanism(
                s.Identity(n),
                sampling.External(self.participation(n), 10.0, n),
                self.number(0.1, 1e3),
                delta=self.number(1e-9, 0.5),
            )
            for _ in range(2)
        ]
        private = self.rng.random() < 0.3
        chosen = an.select(
            made[0],
            mean=self.number(0.5, 1e3),
            score_on=self.odd("private" if private else "public"),
            repetitions=self.odd(self.of("geometric", "logarithmic", "poisson")),
            score_mechanism=made[1] if private else None,
            epsilon=self.number(0.1, 1e2) if self.rng.random() < 0.3 else None,
            delta=self.odd(self.of(None, 1e-6, 0.1)),
        )
        return chosen.epsilon()


#: Calls and their shares; those of SLOW are in the long run alone.
CALLS = {"gaussian": 130, "sensitivities": 350, "losses": 249, "bounds": 120, "optimisers": 39}
SLOW = {"poisson": 2, "allocation": 3, "calibration": 5, "bins": 1, "selections": 1}


def complaint(name, seed):
    """What is wrong with one call, as text; None where nothing is."""

    def stop(*_):
        raise TooSlow

    drawer = Drawer((seed, *name.encode()))
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor, which other programs may use too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers of 1e300 have squares that are infinite
            getattr(drawer, name)()
    except AnechoicError:
        return None
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if SOURCE in Path(frame.filename).parents]
        ours = type(error) in (ValueError, ArithmeticError) and not str(error).startswith(PYTHONS)
        if ours and inside and inside[-1] is frames[-1]:
            return None
        if isinstance(error, TypeError) and not inside:  # Python's own words for the call itself
            return None
        place = f"{inside[-1].filename}:{inside[-1].lineno}" if inside else "outside"
        return f"{type(error).__name__} at {place}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def calls(count):
    """(name, seed) of `count` calls, in their shares."""
    shares = {**CALLS, **SLOW}
    total = sum(shares.values())
    return [(name, seed) for name in shares for seed in range(math.ceil(count * shares[name] / total))]


def complain_of(count):
    """Print what is wrong with `count` calls, in a process that may have BYTES more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, resource.RLIM_INFINITY))
    for name, seed in calls(count):
        found = complaint(name, seed)
        if found is not None:
            print(name, seed, found, flush=True)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_no_input_hangs_or_crashes():
    """In a process of its own, whose memory is limited; settings of small rates and noise take longer."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.test_fuzz import complain_of; complain_of({COUNT})"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", [*CALLS, "allocation"])
@pytest.mark.few(5)
def test_a_few_of_them(name):
    assert [found for seed in range(12) if (found := complaint(name, seed)) is not None] == []


def test_what_the_fuzz_found():
    poisson, epsilons = accounting.poisson_noise_multiplier, allocation.random_allocation_epsilon
    for call, words in (
        (lambda: accounting.gaussian_delta(1.0, 0.0), "mu=0"),
        (lambda: accounting.gaussian_delta(-1, 1.0), r"epsilon=-1\.0 must be finite and at least 0"),
        (lambda: poisson(1.0, 1e-6, 1j, 10, adjacency="zero_out"), "rate=1j must be a real number"),
        (lambda: poisson(1.0, 1e-6, 1j, 10, adjacency="replace_one"), "rate=1j must be a real number"),
        (lambda: poisson(1.0, 1e-6, 0.1, 10, adjacency="replace-one"), "adjacency="),  # counted as another
        (lambda: poisson(1.0, 1e-6, 0.1, 10, adjacency=[]), "adjacency="),  # had no hash
        (lambda: accounting.poisson_epsilon(1e-6, 1.0, 0.1, 10, adjacency=[]), "adjacency="),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert not Cyclic(10**19).together(3).any() and not OncePerEpoch(10**19).together(3).any()
    assert epsilons(1e-5, 1.0, 10**19, 100) == pytest.approx(0.0)
    assert epsilons(1e-5, 1.0, 100, 10**19) > 1e16
    assert epsilons(1e-3, 1e19, 8, 15) == pytest.approx(0.0)
    for epsilon in (10**19, 1e300):  # hung, and divided by zero
        how = {"bins": 4, "epsilon": epsilon, "delta": 1e-8, "bands": 1, "samples": 500}
        assert 0.0 < optimize.balls_in_bins(w.prefix_sum(3), **how).loss < 1e-9
    large = w.from_coefficients([1e250, 1e250], 3)
    assert lower_bounds.lower_bound(large, Single(), "max").value > 1e250


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e300])
def test_a_bound_has_the_scale_of_the_workload(scale):
    column = np.array([0.466, 0.17, 1.0])
    for schema in (Cyclic(2), OncePerEpoch(2), Patterns([(0, 2)])):
        for kind in ("rms", "max"):
            plain = lower_bounds.lower_bound(w.from_coefficients(column, 3), schema, kind).value
            found = lower_bounds.lower_bound(w.from_coefficients(scale * column, 3), schema, kind).value
            assert found / scale == pytest.approx(plain, rel=1e-12)
