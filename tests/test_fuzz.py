"""No input hangs, takes gigabytes, or ends in an error that is not ours; `tests.fuzzing` has the calls."""

import inspect
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anechoic import accounting, lower_bounds, optimize, theory
from anechoic.accounting.random_allocation.epsilon import random_allocation_epsilon
from anechoic.participation import Cyclic, OncePerEpoch, Patterns, Single
from anechoic.strategies import Identity, Toeplitz, endless
from anechoic.theory.lq_noise import ExponentialPower, lq_epsilon
from anechoic.theory.participation import conjecture_4_7
from anechoic.theory.regression import half_exponential_decay
from anechoic.workloads import from_coefficients, prefix_sum
from tests.fuzzing import CALLS, complaint, seeds
from tests.fuzzing_theory import THEORY

LQ = {"norm": 1.0, "dimension": 2, "delta": 1e-3}
COUNT = int(os.environ.get("ANECHOIC_FUZZ", "4000"))  # calls of the slow test; 100,000 take hours

CHILD = """
import sys
from tests.fuzzing import complaint, limit_memory, seeds
limit_memory()
for name, seed in seeds(int(sys.argv[1])):
    found = complaint(name, seed)
    if found is not None:
        print(name, seed, found, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_no_input_hangs_or_crashes():
    """In a process of its own, whose memory is limited; settings of small rates and noise take longer."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(COUNT)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name not in ("bins", "poisson", "calibration", "selections")]
)
@pytest.mark.few(5)
def test_a_few_of_them(name):
    assert [found for seed in range(12) if (found := complaint(name, seed)) is not None] == []


def test_every_function_of_theory_is_called():
    """Of what is public there, the rest are classes; more are called than are public."""
    functions = {name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))}
    assert functions and functions < set(THEORY)


def test_every_call_has_its_share():
    assert {name for name, _ in seeds(1000)} == set(CALLS)
    assert 1000 <= len(seeds(1000)) < 1010


def test_what_the_fuzz_found():
    with pytest.raises(ValueError, match="mu=0"):
        accounting.gaussian_delta(1.0, 0.0)
    with pytest.raises(ValueError, match=r"epsilon=-1\.0 must be finite and at least 0"):
        accounting.gaussian_delta(-1, 1.0)
    for adjacency in ("zero_out", "replace_one"):
        with pytest.raises(ValueError, match=r"rate=1j must be a real number"):
            accounting.poisson_noise_multiplier(1.0, 1e-6, 1j, 10, adjacency=adjacency)
    for adjacency in ("replace-one", []):  # counted as another one, or had no hash
        with pytest.raises(ValueError, match="adjacency="):
            accounting.poisson_noise_multiplier(1.0, 1e-6, 0.1, 10, adjacency=adjacency)
        with pytest.raises(ValueError, match="adjacency="):
            accounting.poisson_epsilon(1e-6, 1.0, 0.1, 10, adjacency=adjacency)
    with pytest.raises(ValueError, match="participation=None"):
        conjecture_4_7(prefix_sum(3), None)
    assert not Cyclic(10**19).together(3).any()
    assert not OncePerEpoch(10**19).together(3).any()
    assert random_allocation_epsilon(1e-5, 1.0, 10**19, 100) == pytest.approx(0.0)
    assert random_allocation_epsilon(1e-5, 1.0, 100, 10**19) > 1e16
    assert random_allocation_epsilon(1e-3, 1e19, 8, 15) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="orders=3 must be a sequence"):
        lq_epsilon(Identity(2), ExponentialPower(2.0, 1.0), **LQ, orders=3)
    with pytest.raises(ValueError, match=f"steps={10**19} must be at most 16,777,216"):
        half_exponential_decay(endless.damped(0.1), steps=10**19, decay_rate=0.1)
    with pytest.raises(ValueError, match=f"terms={10**19} must be at most 256"):
        theory.optimized_strongly_convex_bound(theory.StronglyConvex(10.0, 0.1), rho=1.0, terms=10**19)
    for epsilon in (10**19, 1e300):  # hung, and divided by zero
        found = optimize.balls_in_bins(
            prefix_sum(3), bins=4, epsilon=epsilon, delta=1e-8, bands=1, samples=500
        )
        assert 0.0 < found.loss < 1e-9
    wide = Toeplitz(2, [1e290, 1e-30])  # whose quotient is infinite
    with np.errstate(all="ignore"):
        for norm in (1.0, 1e50):  # whose product is too
            assert (
                lq_epsilon(wide, ExponentialPower(2.0, 1.0), norm=norm, dimension=2, delta=1e-3) == math.inf
            )
    large = from_coefficients([1e250, 1e250], 3)
    assert lower_bounds.lower_bound(large, Single(), "max").value > 1e250


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e300])
def test_a_bound_has_the_scale_of_the_workload(scale):
    column = np.array([0.466, 0.17, 1.0])
    for schema in (Cyclic(2), OncePerEpoch(2), Patterns([(0, 2)])):
        for kind in ("rms", "max"):
            plain = lower_bounds.lower_bound(from_coefficients(column, 3), schema, kind).value
            found = lower_bounds.lower_bound(from_coefficients(scale * column, 3), schema, kind).value
            assert found / scale == pytest.approx(plain, rel=1e-12)
