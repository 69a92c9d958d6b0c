"""A plan, or what an optimiser returned, where a mechanism is wanted: a short message with the remedy."""

from functools import cache

import pytest

import anechoic as an
from anechoic.audit import audit_mechanism
from anechoic.errors import UnsupportedError


@cache
def optimized():
    return an.optimize.banded_toeplitz(an.workloads.prefix_sum(8), bands=2)


WRONG = {
    "plan": lambda delta=1e-4: an.plan(
        examples=80, batch_size=10, epochs=1, epsilon=1.0, delta=delta, strategy="identity"
    ),
    "optimized": optimized,
    "strategy": lambda: optimized().strategy,
}
TAKE = {
    "select": lambda given: an.select(given, mean=10, score_on="public"),
    "compose": lambda given: an.compose(given),
    "audit": audit_mechanism,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("take", TAKE)
def test_what_is_no_mechanism_is_refused_in_a_few_lines(take, wrong):
    with pytest.raises((ValueError, UnsupportedError), match=r"plan\.mechanism") as refused:
        TAKE[take](WRONG[wrong]())
    assert len(str(refused.value)) < 400


def test_a_repr_is_one_line():
    plan = WRONG["plan"]()
    assert repr(plan).startswith("Plan(chosen='Identity', rows=") and len(repr(plan)) < 300
    assert repr(optimized()).startswith("Optimized(strategy=BandedToeplitz(n=8, bands=2), loss=")


def test_a_misspelt_argument_is_told_its_name():
    sampling = an.sampling.FixedOrder(80, 10, steps=8)
    with pytest.raises(TypeError, match=r"calibrate has no argument 'eps'\. Did you mean epsilon\?"):
        an.calibrate(optimized().strategy, sampling=sampling, eps=1.0, delta=1e-5)
    mech = an.calibrate(optimized().strategy, sampling=sampling, epsilon=1.0, delta=1e-5)
    with pytest.raises(TypeError, match=r"select has no argument 'score_om'\. Did you mean score_on"):
        an.select(mech, mean=10, score_om="public")


def test_a_plan_at_a_delta_that_promises_nothing_says_so():
    said = "publishing one of them as it is"
    assert said in WRONG["plan"](0.1).reason and said not in WRONG["plan"]().reason


def test_calibrate_without_sampling_says_what_to_give():
    strategy = an.strategies.Identity(4)
    with pytest.raises(ValueError, match=r"sampling is missing.*External\(participation\.Single\(\)"):
        an.calibrate(strategy, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"goes into sampling\.External"):
        an.calibrate(strategy, sampling=an.participation.Single(), epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"\.strategy"):
        an.calibrate(optimized(), sampling=an.sampling.FixedOrder(80, 10, steps=8), epsilon=1.0, delta=1e-6)
