"""Arguments that users write by mistake or at the ends of a range, for every function that gives a number.

A call may return or refuse in our words: a ValueError or an ArithmeticError that was raised in this library.
It may not take more than ten seconds of the processor, or 2 GiB, or end in an error of NumPy's or Python's.
Ranges of sampled runs leave out rates below 1e-4, and noise below 0.5 that is given, where accounting alone
takes longer than that.
"""

import math
import resource
import signal
import traceback
import warnings
from pathlib import Path

import numpy as np

import anechoic as an
from anechoic import accounting, lower_bounds, optimize, sampling, strategies, workloads
from anechoic.accounting.random_allocation.epsilon import (
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.errors import AnechoicError
from anechoic.losses.dispatch import loss
from anechoic.lower_bounds.prefix_sums import (
    logarithmic_lower_bound,
    logarithmic_upper_bound,
    mathias_lower_bound,
    mathias_upper_bound,
)
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns, Single
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.theory.participation import conjecture_4_7
from tests.fuzzing_theory import Theory

SECONDS, BYTES = 10, 2 << 30
PYTHONS = ("math domain error", "cannot convert float")  # words of Python's own, at a line of ours
SOURCE = Path(an.__file__).parent
ODD = [0, -1, 1, 0.0, -0.0, 0.5, 1.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, 5e-324, 2**31]
ODD += [10**19, None, "1", True, np.float64(0.3), np.int64(3), np.array([1.0, 2.0]), [], 1j]


class TooSlow(Exception):
    """A call took more than its ten seconds of the processor."""


class Drawer(Theory):
    """Arguments from a generator: mostly sensible, some at the ends, some no number at all."""

    ODD = ODD

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

    def vector(self, n):
        scale = 10.0 ** self.rng.uniform(-6, 6) if self.rng.random() < 0.2 else 1.0
        x = scale * self.rng.standard_normal(n) * (self.rng.random(n) < 0.8)
        kind = self.rng.random()
        if kind < 0.3:
            x = np.abs(x)
        if kind > 0.97 and n:
            x[int(self.rng.integers(n))] = self.of(math.nan, math.inf, 1e300, 1e-300)
        return x

    def workload(self, n):
        w = workloads
        made = [
            lambda: w.prefix_sum(n),
            lambda: w.momentum(n, self.number(0.01, 0.999)),
            lambda: w.nesterov(n, self.number(0.01, 0.999)),
            lambda: w.exponential_decay(n, self.number(0.01, 1.0)),
            lambda: w.sliding_window(n, self.odd(self.size(n))),
            lambda: w.scheduled(w.prefix_sum(n), self.vector(n)),
            lambda: w.restart_differences(w.prefix_sum(n), period=self.odd(self.size(n))),
            lambda: w.from_coefficients(self.vector(n), n),
            lambda: w.from_dense(
                np.tril(self.rng.standard_normal((n, n)) * self.of(1.0, 1e-9, 1e9)) + np.eye(n)
            ),
        ]
        return self.of(*made)()

    def participation(self, n):
        made = [
            Single,
            FullBatch,
            lambda: Cyclic(self.odd(self.size(n))),
            lambda: MinSep(self.odd(self.size(n)), self.odd(self.of(None, 1, 2, 3))),
            lambda: OncePerEpoch(self.odd(self.size(n))),
            lambda: Patterns(
                [
                    sorted({int(t) for t in self.rng.integers(0, n + 1, self.size(3))})
                    for _ in range(self.size(4))
                ]
            ),
        ]
        return self.of(*made)()

    def kind(self, n):
        kind = self.of("rms", "rms", "max", "last", "median", "weights")
        return self.odd(np.abs(self.vector(n)) if kind == "weights" else kind, 0.02)

    def strategy(self, n):
        s = strategies
        made = [
            lambda: s.Identity(n),
            lambda: s.Toeplitz(n, self.vector(n)),
            lambda: s.BandedToeplitz(n, np.append(1.0, self.vector(self.size(4) - 1))),
            lambda: s.BandedInverse(n, np.append(1.0, self.vector(self.size(3) - 1))),
            lambda: s.Dense(
                np.tril(self.rng.standard_normal((n, n))) + np.eye(n) * self.of(0.0, 1.0, 1e-9, 1e9)
            ),
            lambda: s.BLT(n, np.abs(self.vector(2)), self.rng.random(2)),
            lambda: s.ColumnNormalized(
                s.BandedToeplitz(n, np.append(1.0, np.abs(self.vector(self.size(4) - 1))))
            ),
            lambda: s.FullTree(n),
        ]
        return self.of(*made)()

    def sampling(self, n):
        s, examples = sampling, self.whole(1, 1e6)
        made = [
            lambda: s.Poisson(examples, self.whole(1, 1e4), n),
            lambda: s.CyclicPoisson(examples, self.whole(1, 1e4), self.size(n), n),
            lambda: s.BallsInBins(examples, self.whole(1, 50), n),
            lambda: s.RandomAllocation(examples, self.whole(1, 1e3), n),
        ]
        return self.of(*made)()

    # -- calls ----------------------------------------------------------------------------------

    def gaussian(self):
        f = self.of(accounting.gaussian_epsilon, accounting.gaussian_delta, accounting.gaussian_mu)
        return f(self.number(1e-12, 0.99), self.number(1e-4, 1e4))

    def poisson(self):
        rest = (self.number(1e-4, 1.0), self.whole(1, 1e4))
        adjacency = {"adjacency": self.odd(self.of("zero_out", "add_or_remove", "replace_one"), 0.02)}
        if self.rng.random() < 0.95:
            return accounting.poisson_epsilon(
                self.number(1e-12, 0.99), self.number(0.5, 1e3), *rest, **adjacency
            )
        return accounting.poisson_noise_multiplier(
            self.number(1e-2, 1e2), self.number(1e-12, 0.5), *rest, **adjacency
        )

    def allocation(self):
        rest = (self.whole(1, 200), self.whole(1, 500))
        if self.rng.random() < 0.95:
            return random_allocation_epsilon(self.number(1e-12, 0.99), self.number(0.5, 1e3), *rest)
        return random_allocation_noise_multiplier(self.number(0.3, 1e2), self.number(1e-12, 0.5), *rest)

    def calibration(self):
        n = self.size()
        strategy, scheme = self.strategy(n), self.sampling(n)
        how = {
            "delta": self.number(1e-12, 0.9),
            "adjacency": self.of("zero_out", "add_or_remove", "replace_one"),
        }
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
            f = self.of(
                lower_bounds.prefix_sum_lower_bound,
                mathias_lower_bound,
                mathias_upper_bound,
                logarithmic_lower_bound,
                logarithmic_upper_bound,
            )
            return f(self.whole(1, 1e7))
        return lower_bounds.lower_bound(self.workload(n), self.participation(n), self.kind(n))

    def optimisers(self):
        n = self.size(6)
        workload, how = self.workload(n), {"loss": self.kind(n)}
        if self.rng.random() < 0.9:
            how["participation"] = self.participation(n)
        made = [
            lambda: optimize.banded(workload, bands=self.odd(self.size(n)), **how),
            lambda: optimize.banded_inverse(
                workload, bands=self.odd(self.size(n)), family=self.of("free", "fractional"), **how
            ),
            lambda: optimize.banded_toeplitz(workload, bands=self.odd(self.size(n)), **how),
            lambda: optimize.blt(workload, buffers=self.odd(self.of(None, 1, 2)), **how),
            lambda: optimize.column_normalized(workload, bands=self.odd(self.size(n)), **how),
            lambda: optimize.damped(workload, **how),
            lambda: optimize.dense(workload, gap=self.odd(self.of(None, 1e-3)), **how),
            lambda: optimize.dense_bound(workload, loss=how["loss"], gap=self.odd(1e-4)),
            lambda: optimize.toeplitz(workload, **how),
            lambda: optimize.restarted(
                workload, strategies.Identity, restarts=self.odd(self.of(1, "choose")), **how
            ),
            lambda: conjecture_4_7(workload, how.get("participation")),
        ]
        return self.of(*made)()

    def bins(self):
        n = self.size(8)
        return optimize.balls_in_bins(
            self.workload(n),
            bins=self.odd(self.size(20)),
            epsilon=self.number(1e-2, 1e2),
            delta=self.number(1e-9, 0.5),
            bands=self.odd(self.size(n)),
            samples=500,
            rounds=1,
        )

    def selections(self):
        """Few of them, as an epsilon takes up to a second, and the search for the noise some fifteen."""
        n = self.size(4)
        made = [
            an.Mechanism(
                strategies.Identity(n),
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


#: Calls, and how many of a thousand are of each.
CALLS = {
    "gaussian": 130,
    "poisson": 2,
    "allocation": 3,
    "calibration": 5,
    "sensitivities": 350,
    "losses": 249,
    "theories": 100,
    "bounds": 120,
    "optimisers": 39,
    "bins": 1,
    "selections": 1,
}


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
    except (ValueError, ArithmeticError) as error:
        ours = type(error) in (ValueError, ArithmeticError) and not str(error).startswith(PYTHONS)
        if ours and SOURCE in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parents:
            return None
        return _said(error)
    except TypeError as error:
        # Python's own words for an argument of another kind, at the call itself
        return None if len(traceback.extract_tb(error.__traceback__)) <= 3 else _said(error)
    except BaseException as error:
        return _said(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _said(error):
    frames = [f for f in traceback.extract_tb(error.__traceback__) if SOURCE in Path(f.filename).parents]
    place = f"{Path(frames[-1].filename).relative_to(SOURCE)}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {place}: {error}"


def limit_memory():
    """Let this process have BYTES more than it has; not where others share its memory limits."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, resource.RLIM_INFINITY))


def seeds(count):
    """(name, seed) of `count` calls, in their shares."""
    total = sum(CALLS.values())
    return [(name, seed) for name, share in CALLS.items() for seed in range(math.ceil(count * share / total))]
