"""CorrectedAdam, and what make_private plans for the optimizer at hand."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.accounting import poisson_epsilon
from anechoic.errors import MismatchError
from anechoic.mechanism.calibrate import calibrate
from anechoic.planning.advice import ADAM
from anechoic.planning.compare import plan
from anechoic.planning.families import family
from anechoic.planning.update import UpdateRule
from anechoic.sampling import Poisson
from anechoic.strategies import Identity
from anechoic.torch import CorrectedAdam, PrivacyEngine
from anechoic.torch.optimizer_kinds import independent_noise_std
from tests.torch.setting import data, mechanism, network, private, start, step


def descend(optimizer, parameter, gradients):
    path = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        path.append(parameter.detach().clone())
    return torch.stack(path)


@pytest.mark.parametrize("decoupled", [False, True])
def test_without_noise_it_is_adam(decoupled):
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    ours, theirs = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    options = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    plain = torch.optim.AdamW if decoupled else torch.optim.Adam
    found = descend(CorrectedAdam([ours], decoupled_weight_decay=decoupled, **options), ours, gradients)
    assert torch.allclose(found, descend(plain([theirs], **options), theirs, gradients), atol=1e-6)


def test_the_second_moment_is_that_which_independent_noise_would_leave():
    """By the formula, with sums written out, at variances that differ from step to step."""
    gradients = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    variances, reference, second = np.array([0.1, 0.4, 0.2, 0.3, 1.0, 0.5]), 0.05, 0.9
    p = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = CorrectedAdam([p], lr=0.1, betas=(0.0, second), eps=0.0)
    optimizer.expect_noise(variances, reference)
    steps = descend(optimizer, p, gradients).diff(dim=0, prepend=torch.zeros(1, 4, dtype=torch.float64))
    g = gradients.numpy()
    for t in range(6):
        weights = second ** (t - np.arange(t + 1))
        weights /= weights.sum()
        v = np.maximum(weights @ np.square(g[: t + 1]) - weights @ variances[: t + 1], 0.0) + reference
        assert steps[t].numpy() == pytest.approx(-0.1 * g[t] / np.sqrt(v), rel=1e-12)


def test_more_steps_than_were_told_of_are_refused():
    p = nn.Parameter(torch.zeros(1))
    optimizer = CorrectedAdam([p])
    optimizer.expect_noise(np.ones(1), 1.0)
    descend(optimizer, p, torch.ones(1, 1))
    with pytest.raises(MismatchError, match="step 2 of CorrectedAdam, whose noise is known for 1 steps"):
        descend(optimizer, p, torch.ones(1, 1))


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"eps": -1e-9}, {"weight_decay": -1}])
def test_refusals(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        CorrectedAdam([nn.Parameter(torch.zeros(1))], **bad)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_engine_says_what_the_noise_of_every_step_is(reduction):
    run = start(mech=mechanism(clip_norm=0.5), optimizer=CorrectedAdam, reduction=reduction)
    rows = run.mechanism.strategy.correlate(np.eye(15))
    scale = 0.5 * run.mechanism.noise_std / (8 if reduction == "mean" else 1)
    told = run.optimizer.original_optimizer
    assert told._variances == pytest.approx(scale**2 * np.square(rows).sum(axis=1), rel=1e-9)
    alone = calibrate(
        Identity(15), sampling=run.mechanism.sampling, epsilon=run.mechanism.epsilon(), delta=1e-6
    )
    assert told._reference == pytest.approx(
        (scale * alone.noise_std / run.mechanism.noise_std) ** 2, rel=1e-6
    )
    for _, batch in zip(range(3), run.loader, strict=False):
        step(run, batch)
    assert run.engine.releases == 3


def test_independent_noise_under_sampling_is_that_of_poisson_batches():
    mech = mechanism("cyclic", bands=2)
    sampling = Poisson(40, 8, 15)
    assert independent_noise_std(mech) == pytest.approx(
        calibrate(Identity(15), sampling=sampling, epsilon=mech.epsilon(), delta=1e-6).noise_std, rel=1e-9
    )


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")
def test_muon_is_planned_for_sums_of_gradients():
    """Whatever its momentum: plans for its buffer were worse (docs/measured.md)."""
    model = nn.Linear(6, 2, bias=False)
    muon = torch.optim.Muon(model.parameters(), lr=0.1, momentum=0.95)
    options = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 1, "max_grad_norm": 1.0}
    options |= {"to_epsilon": True, "poisson_sampling": False}
    made, optimizer, loader = private(engine := PrivacyEngine(), model=model, optimizer=muon, **options)
    assert engine.plan.chosen.objective.workload.is_prefix_sum
    assert engine.plan.chosen.name != "Identity"
    for x, y in loader:
        nn.functional.cross_entropy(made(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert engine.releases == 5


def planned(optimizer, *, to_epsilon=False, lr=0.1, shuffle=True, **options):
    model, loader = network(), torch.utils.data.DataLoader(data(80), batch_size=8, shuffle=shuffle)
    made = {"model": model, "loader": loader, "optimizer": optimizer(model.parameters(), lr=lr)}
    private(engine := PrivacyEngine(), **made, to_epsilon=to_epsilon, max_grad_norm=1.0, **options)
    return engine


@pytest.mark.parametrize("make", ["make_private", "make_private_with_epsilon"])
def test_adam_gets_the_noise_that_its_rate_is_for(make):
    """Sums at their rate, the buffer at that of independent noise, and this below it."""
    options = {"target_delta": 1e-4, "epochs": 2, "poisson_sampling": False}
    options |= {"noise_multiplier": 0.6} if make == "make_private" else {"target_epsilon": 3.0}
    to_epsilon = make != "make_private"
    sgd = planned(torch.optim.SGD, to_epsilon=to_epsilon, **options)
    adam = planned(torch.optim.Adam, to_epsilon=to_epsilon, lr=0.2, **options)
    assert adam.mechanism.strategy.describe() == sgd.mechanism.strategy.describe()
    assert adam.mechanism.epsilon() == pytest.approx(sgd.mechanism.epsilon(), rel=1e-9)
    usual = planned(torch.optim.Adam, to_epsilon=to_epsilon, mechanism="identity", **options).plan.advice.rate
    middle = planned(torch.optim.Adam, to_epsilon=to_epsilon, lr=1.1 * usual, **options).plan
    assert middle.chosen.objective.workload.coefficients[1] == pytest.approx(0.9)
    assert usual < middle.advice.rate < adam.plan.advice.rate
    low = planned(torch.optim.Adam, to_epsilon=to_epsilon, lr=0.5 * usual, **options)
    assert family(low.mechanism.strategy) == "identity" and low.plan.advice.rate == pytest.approx(usual)
    assert f"give lr={adam.plan.advice.rate:.2g}" in low.plan.reason
    assert f" Better: give lr={adam.plan.advice.rate:.2g} and plan again." in str(low.plan.advice)
    assert adam.plan.advice.larger is None and low.plan.advice.larger == adam.plan.advice.rate
    named = planned(torch.optim.Adam, to_epsilon=to_epsilon, mechanism="banded", lr=0.5 * usual, **options)
    assert family(named.mechanism.strategy) == "banded_toeplitz"


@pytest.mark.parametrize("optimizer", [torch.optim.RMSprop, torch.optim.AdamW])
def test_a_printed_plan_says_why_a_small_rate_gets_independent_noise(optimizer):
    setting = {"examples": 10000, "batch_size": 500, "epochs": 1, "epsilon": 2.0, "delta": 1e-6}
    made = optimizer([torch.nn.Parameter(torch.zeros(9))], lr=1e-3)
    found = plan(**setting, optimizer=made, random_sampling=False)
    assert family(found.mechanism.strategy) == "identity"
    for said in (str(found), found.why()):
        words = " ".join(said.split())
        assert f"{optimizer.__name__}'s learning rate of 0.001 is for small noise of a step; noise" in words
        assert re.search(r": give lr=0\.\d+ and plan again[.;] ", words) and " Adam's" not in words


@pytest.mark.parametrize(("shuffle", "drawn"), [(True, False), (False, False), (True, True)])
def test_who_shuffles_in_a_fixed_order_is_told_what_drawing_would_give(shuffle, drawn):
    options = {"target_epsilon": 3.0, "target_delta": 1e-4, "epochs": 1, "poisson_sampling": drawn}
    found = planned(torch.optim.SGD, to_epsilon=True, shuffle=shuffle, **options).plan
    assert ("The loader shuffles: poisson_sampling=True would draw" in found.reason) == (
        shuffle and not drawn
    )
    assert (found.drawn is None) == drawn
    if shuffle and not drawn:
        most = min(1.0, found.drawn.predicted / found.chosen.predicted)
        assert f"for at most {most:.2g} times this error" in found.reason
        with_permission = planned(
            torch.optim.SGD, to_epsilon=True, **{**options, "poisson_sampling": True}
        ).plan
        assert with_permission.chosen.predicted <= 1.02 * most * found.chosen.predicted


def test_a_plan_for_adam_chooses_from_the_same_rows():
    setting = {"examples": 300, "batch_size": 30, "epochs": 2, "epsilon": 2.0, "delta": 1e-5}
    sgd, adam = (plan(**setting, optimizer=kind, random_sampling=False) for kind in ("sgd", "adam"))
    assert [row.name for row in sgd.rows] == [row.name for row in adam.rows]
    assert adam.chosen == sgd.chosen
    assert adam.advice.rate == pytest.approx(ADAM * sgd.advice.rate * sgd.chosen.step_noise)
    plain = plan(**setting, optimizer=UpdateRule("adam", 0.9), random_sampling=False)  # as RMSprop's buffer
    assert 10 * plain.advice.rate == pytest.approx(adam.advice.rate)
    with pytest.raises(ValueError, match="optimizer='lion'"):
        plan(**setting, optimizer="lion")


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_noise_multiplier_keeps_the_epsilon_that_it_has_in_opacus(optimizer):
    engine = planned(optimizer, noise_multiplier=1.1, target_delta=1e-4, epochs=1, adjacency="replace_one")
    opacus = poisson_epsilon(1e-4, 1.1, 8 / 80, 10, adjacency="replace_one")
    assert opacus * 0.998 <= engine.mechanism.epsilon() <= opacus


def test_a_delta_that_is_not_below_1_over_n_is_seen_without_configuring_anything(caplog):
    options = {"noise_multiplier": 1.0, "epochs": 1, "mechanism": "identity", "poisson_sampling": False}
    planned(torch.optim.SGD, target_delta=0.012, **options)
    assert not caplog.records
    planned(torch.optim.SGD, target_delta=0.013, **options)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "delta=0.013 is at least 1/N for N=80" in record.getMessage()
