"""Training over units, from unit_ids to the weights, against steps written out by hand."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from anechoic.batches.base import batches_of
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.calibrate import calibrate
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.sampling import External, FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.units.ownership import Units
from tests.marks import each_once
from tests.torch.setting import NOISE_KEY, SAMPLING_KEY, data, network, start, step, train, weights
from tests.torch.setting import private as made_private
from tests.torch.units_setting import (
    CLIP,
    EXAMPLES,
    IDS,
    LR,
    SCHEMES,
    clipped,
    gradient,
    network_of,
    scheme,
    unit_mechanism,
    unit_run,
)


def by_hand(owners, sampling, dataset, *, steps, combine="sum", counts=None):
    """Weights after `steps` steps, every unit's part written out; `owners` is a set of units an example."""
    model = network()
    x, y = dataset.tensors
    inner = batches_of(sampling, SAMPLING_KEY, period=None)
    for t in range(steps):
        drawn = set(inner.batch(t).tolist())
        rows = [i for i, own in enumerate(owners) if own <= drawn]
        alone = {u: [i for i in rows if owners[i] == {u}] for u in drawn}
        shared = [i for i in rows if len(owners[i]) > 1]
        n = {u: bool(alone[u]) + sum(u in owners[i] for i in shared) for u in drawn}
        n = n if counts is None else counts
        total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
        for u in drawn:
            if alone[u]:
                part = sum(gradient(model, x[i], y[i]) for i in alone[u])
                part = part / len(alone[u]) / n[u] if combine == "mean" else part
                total += clipped(part, CLIP / n[u])
        for i in shared:
            most = max(n[u] for u in owners[i])
            part = gradient(model, x[i], y[i]) / (most if combine == "mean" else 1)
            total += clipped(part, CLIP / most)
        with torch.no_grad():
            change = LR * total / float(sampling.expected_batch_size)
            start_at = 0
            for p in model.parameters():
                p -= change[start_at : start_at + p.numel()].view_as(p).float()
                start_at += p.numel()
    return weights(model)


def agree(run, expected, steps):
    found = train(run, steps)
    assert not torch.allclose(found, weights(network()), atol=1e-3)  # something was learnt
    assert torch.allclose(found, expected, atol=2e-5)


# The whole path.


@pytest.mark.parametrize(("combine", "name"), each_once(["sum", "mean"], SCHEMES))
@pytest.mark.few(1)
def test_a_run_over_units_is_the_one_by_hand(name, combine):
    ids = np.arange(EXAMPLES) ** 3 % 29 % 9
    count = len(set(ids.tolist()))
    assert count == 9
    sampling = scheme(name, count, 8)
    first = list(dict.fromkeys(ids.tolist()))
    expected = by_hand(
        [{first.index(i)} for i in ids.tolist()], sampling, data(EXAMPLES), steps=8, combine=combine
    )
    agree(unit_run(ids=Units(ids, combine=combine), sampling=sampling), expected, 8)


@pytest.mark.parametrize(("combine", "name"), each_once(["sum", "mean"], SCHEMES))
@pytest.mark.few(2)
def test_a_run_with_several_owners_is_the_one_by_hand(name, combine):
    generator = np.random.default_rng(3)
    owners = [set(generator.choice(6, size=generator.integers(1, 3), replace=False)) for _ in range(EXAMPLES)]
    ids = [sorted(int(u) for u in own) for own in owners]
    order = list(dict.fromkeys(u for own in ids for u in own))
    numbered = [{order.index(u) for u in own} for own in ids]
    sampling = scheme(name, 6, 6)
    counts = None
    if sampling.amplified:  # over the whole data set, or over one's own group where that is known
        group = dict.fromkeys(range(6), 0)
        if name == "cyclic":
            members = batches_of(sampling, SAMPLING_KEY).members
            group = {int(u): g for g, some in enumerate(members) for u in some}
        meets = [len({group[u] for u in own}) == 1 for own in numbered]
        counts = {
            u: ({u} in numbered)
            + sum(u in own and len(own) > 1 and m for own, m in zip(numbered, meets, strict=True))
            for u in range(6)
        }
    expected = by_hand(numbered, sampling, data(EXAMPLES), steps=6, combine=combine, counts=counts)
    run = unit_run(ids=Units(ids, combine=combine), sampling=sampling)
    assert run.engine.units.shared > 0
    found = train(run, 6)
    assert torch.allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("owners", ["one", "several"])
@pytest.mark.slow
def test_a_run_with_max_examples_is_the_one_by_hand(owners):
    # what is kept is read off the delivered batch; all else is written out
    users = (np.arange(EXAMPLES) ** 2 % 7 % 5).tolist()
    ids = [{u} if owners == "one" or i % 3 else {u, (u + 1) % 5} for i, u in enumerate(users)]
    order = list(dict.fromkeys(u for own in ids for u in sorted(own)))
    numbered = [{order.index(u) for u in own} for own in ids]
    units = Units([sorted(own) for own in ids], max_examples=2)
    sampling = Poisson(units.count, 2, 12)
    run = unit_run(ids=units, sampling=sampling)
    inner = batches_of(sampling, SAMPLING_KEY)
    all_of = {u: [own for own in numbered if u in own] for u in range(units.count)}
    n = {u: min(2, ({u} in some) + sum(len(own) > 1 for own in some)) for u, some in all_of.items()}
    bare = 0  # units that were drawn, of which nothing was kept
    while run.engine.releases < 12:
        for x, y in run.loader:
            delivery = run.optimizer.ledger.in_hand
            drawn, kept = set(inner.batch(delivery.step).tolist()), delivery.units.examples.tolist()
            plain = network_of(run.module)
            total = torch.zeros(sum(p.numel() for p in plain.parameters()), dtype=torch.float64)
            for u in drawn:
                mine = [row for row, e in enumerate(kept) if numbered[e] == {u}]
                count = sum(u in numbered[e] for e in kept)
                assert count <= 2 and (count == min(2, len(all_of[u])) or owners == "several")
                bare += count == 0
                if mine:
                    total += clipped(sum(gradient(plain, x[row], y[row]) for row in mine), CLIP / n[u])
            for row, e in enumerate(kept):
                assert numbered[e] <= drawn
                if len(numbered[e]) > 1:
                    total += clipped(gradient(plain, x[row], y[row]), CLIP / max(n[u] for u in numbered[e]))
            before = weights(run.model).double()
            if len(y):
                step(run, (x, y))
            else:
                run.optimizer.step()
            moved = (before - weights(run.model).double()) / LR * float(sampling.expected_batch_size)
            assert torch.allclose(moved, total, atol=1e-5)
    assert bare > 0 or owners == "one"


# The attack: one unit with many examples that all pull the same way.


class Pull(nn.Module):
    """An example's gradient is the example itself; one of zeros has none."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)

    def forward(self, x):
        return self.layer(x)[:, 0]


def pulled(ids, x, *, sampling, steps=3, clip_norm=1.0, noise_std=0.5):
    """Sums released in the first steps, times the divisor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Pull()
    run = start(
        mech=unit_mechanism(sampling, noise_std=noise_std, clip_norm=clip_norm),
        model=model,
        dataset=TensorDataset(x),
        unit_ids=ids,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )
    sums = []
    while run.engine.releases < steps:
        for (batch,) in run.loader:
            before = weights(model)
            run.optimizer.zero_grad()
            run.forward(batch).mean().backward()
            run.optimizer.step()
            sums.append((before - weights(model)).double() * sampling.expected_batch_size)
            if run.engine.releases == steps:
                break
    return sums


@pytest.mark.parametrize(("name", "owners"), each_once(SCHEMES, ["one", "several"]))
@pytest.mark.slow
def test_zeroing_a_unit_moves_no_release_by_more_than_the_clip_norm(name, owners):
    # the same noise and the same batches: the difference of two releases is what the unit adds
    ids = [0] * 12 + [1] * 4 + [2, 3, 4, 5]
    if owners == "several":
        ids = [[u] if i % 2 else sorted({u, 0}) for i, u in enumerate(ids)]
    x = 3 * torch.ones(20, 4)
    zeroed = x.clone()
    zeroed[[i for i, own in enumerate(ids) if own == 0 or (isinstance(own, list) and 0 in own)]] = 0
    sampling = scheme(name, 6, 12)
    pairs = zip(
        pulled(ids, x, sampling=sampling, steps=12),
        pulled(ids, zeroed, sampling=sampling, steps=12),
        strict=True,
    )
    moved = [float((one - other).norm()) for one, other in pairs]
    assert max(moved) <= 1 + 1e-4
    if owners == "one":
        assert max(moved) > 0.99


# Batches of somebody else.


class InTime(BatchSampler):
    """Batches of 5 in the order of the data."""

    def __init__(self, examples, size=5):
        super().__init__(SequentialSampler(range(examples)), size, drop_last=False)


def external(ids, participation, *, batch_size=5, steps=8, sampler=None, unit="user"):
    mech = calibrate(
        Identity(steps), sampling=External(participation, batch_size, steps), noise_multiplier=1.0,
        delta=1e-3, clip_norm=CLIP, unit=unit,
    )  # fmt: skip
    loader = DataLoader(data(EXAMPLES), batch_sampler=InTime(EXAMPLES) if sampler is None else sampler)
    engine = PrivacyEngine(noise_key=NOISE_KEY, sampling_key=SAMPLING_KEY)
    return engine, made_private(engine, loader=loader, mechanism=mech, unit_ids=ids)


def test_the_promise_is_checked_for_units():
    once = np.repeat(np.arange(8), 5)
    external(once, Single())
    with pytest.raises(MismatchError, match=r"batch 1 breaks the promise .* a user in it took part"):
        external(np.repeat(np.arange(4), 10), Single())
    external(np.repeat(np.arange(4), 10), MinSep(1, 2))
    with pytest.raises(MismatchError, match="batch 5 breaks the promise"):
        external(np.repeat([0, 1, 2, 3, 4, 0, 5, 6], 5), Cyclic(4))
    external(np.repeat([0, 1, 2, 3, 0, 5, 6, 7], 5), Cyclic(4))
    owners = [[u] for u in np.repeat(np.arange(8), 5).tolist()]
    for example, both in ((7, [1, 0]), (2, [0, 1])):  # once each of the two comes a second time
        with pytest.raises(MismatchError, match="batch 1 breaks the promise"):
            external([both if i == example else own for i, own in enumerate(owners)], Single())
    _, (_, optimizer, loader) = external(Units(np.repeat(np.arange(8), 5), max_examples=2), Single())
    x, _ = next(iter(loader))
    delivery = optimizer.ledger.in_hand
    assert len(x) == 2 and delivery.units.count == 1
    assert set(delivery.units.examples.tolist()) <= set(range(5))


# Planning and fitting.


def private(*, ids, batch_size=3, shuffle=True, drop_last=False, **options):
    loader = DataLoader(data(EXAMPLES), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    given = {"target_epsilon": 8.0, "target_delta": 1e-3, "max_grad_norm": 1.0, **options}
    engine = PrivacyEngine()
    return engine, made_private(engine, loader=loader, to_epsilon=True, unit_ids=ids, **given)


@pytest.mark.slow
def test_a_planned_run_counts_units():
    engine, (_, _, loader) = private(ids=IDS, epochs=3, unit="user", poisson_sampling=False)
    assert engine.mechanism.sampling == FixedOrder(11, 3, steps=12)
    assert (engine.mechanism.unit, len(loader), engine.units.count) == ("user", 4, 11)
    engine, (_, _, loader) = private(ids=IDS, epochs=3, unit="user", mechanism="identity")
    assert (engine.mechanism.sampling.examples, engine.mechanism.steps, len(loader)) == (11, 12, 4)
    assert engine.mechanism.amplified
    assert engine.mechanism.epsilon() <= 8
    engine, (_, _, loader) = private(ids=IDS, epochs=3, drop_last=True, poisson_sampling=False)
    assert (engine.mechanism.sampling.steps, engine.mechanism.unit, len(loader)) == (9, "unit", 3)
    assert start().engine.units is None


@pytest.mark.parametrize(
    ("ids", "options", "error", "reason"),
    [
        (None, {"unit": "user", "epochs": 1}, MismatchError, "unit_ids is missing"),
        (IDS[:-1], {"epochs": 1}, MismatchError, "owners of 39 examples, and the data set has 40"),
        (IDS, {"epochs": 1, "unit": "example"}, MismatchError, "would not cover a unit"),
        (IDS, {"epochs": 1, "grad_sample_mode": "ghost"}, UnsupportedError, "Use 'rows'"),
        (IDS, {"epochs": 1, "batch_size": 12}, ValueError, "exceeds examples=11"),
        (
            [[0, 1]] * EXAMPLES,
            {"epochs": 1, "batch_size": 1, "adjacency": "replace_one"},
            UnsupportedError,
            "several owners",
        ),
    ],
)
def test_units_that_do_not_fit_are_refused(ids, options, error, reason):
    with pytest.raises(error, match=reason):
        private(ids=ids, **options)


@pytest.mark.parametrize(
    ("mech", "ids", "reason"),
    [
        (unit_mechanism(FixedOrder(EXAMPLES, 3, steps=4)), IDS, "unit_ids name 11 units, .* examples=40"),
        (unit_mechanism(FixedOrder(11, 3, steps=4)), None, "unit_ids is missing"),
        (unit_mechanism(FixedOrder(11, 3, steps=4), unit="example"), IDS, "would not cover a unit"),
        (
            unit_mechanism(FixedOrder(11, 3, steps=4, drop_last=True)),
            IDS,
            "4 batches a pass, the mechanism 3",
        ),
    ],
)
def test_a_mechanism_for_other_units_is_refused(mech, ids, reason):
    with pytest.raises(MismatchError, match=reason):
        start(mech=mech, dataset=data(EXAMPLES), unit_ids=ids)


def test_copies_that_different_units_own_are_reported(caplog):
    x, y = (t.clone() for t in data(EXAMPLES).tensors)
    x[3], y[3] = x[1], y[1]
    unit_run(ids=IDS, sampling=FixedOrder(11, 3, steps=4), dataset=TensorDataset(x, y))
    assert "1 groups of equal examples (2 examples, such as [1, 3]) are not one user each" in caplog.text
    caplog.clear()
    same = IDS.copy()
    same[3], same[0] = same[1], 3
    unit_run(ids=same, sampling=FixedOrder(11, 3, steps=4), dataset=TensorDataset(x, y))
    unit_run(ids=IDS, sampling=FixedOrder(11, 3, steps=4))
    assert "equal examples" not in caplog.text


# The documentation.
