from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError, ReplayError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs import ledger
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.torch import BatchMemoryManager, PrivacyEngine, pseudo_gradient
from anechoic.torch.local_steps import LocalSteps, unit_pseudo_gradients
from anechoic.units.ownership import Units
from tests.marks import each_pair, every_other
from tests.torch.setting import FEATURES, data, network, start, weights

SIZES = (1, 5, 2, 3, 1, 9, 4, 7)  # of the units: 32 examples in all
OWNERS = np.random.default_rng(3).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def by_hand(model, criterion, x, y, *, steps, rate, size=None):
    """Eq. (1.27) with torch's own SGD on a copy: (theta - theta_k) / eta."""
    import copy

    local = copy.deepcopy(model)
    sgd = torch.optim.SGD(local.parameters(), lr=rate)
    for step in range(steps):
        rows = torch.arange(len(y)) if size is None else (step * size + torch.arange(size)) % len(y)
        rows = rows if size is None or size < len(y) else torch.arange(len(y))
        sgd.zero_grad()
        criterion(local(x[rows]), y[rows]).backward()
        sgd.step()
    pairs = zip(model.named_parameters(), local.parameters(), strict=True)
    return {name: ((p - q) / rate).detach() for (name, p), q in pairs}


def run_of(
    *,
    combine="sum",
    owners=OWNERS,
    steps=4,
    batch_size=4,
    reduction="mean",
    model=None,
    kind="fixed",
    std=0.3,
    **options,
):
    """(engine, model, optimizer, loader) of a run over units."""
    units = len(set(owners.tolist())) if isinstance(owners, np.ndarray) else Units(owners).count
    sampling = FixedOrder(units, batch_size, steps=steps) if kind == "fixed" else Poisson(units, 2, steps)
    strategy = BandedToeplitz(steps, [1.0, 0.5]) if kind == "fixed" else Identity(steps)
    model = (network() if model is None else model).double()
    dataset = data(len(owners))
    dataset.tensors = (dataset.tensors[0].double(), dataset.tensors[1])
    engine = PrivacyEngine(noise_key=bytes(range(32)), sampling_key=bytes(range(32, 64)))
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=batch_size if kind == "fixed" else 2, shuffle=True),
        mechanism=Mechanism(strategy, sampling, std, unit="user"),
        loss_reduction=reduction,
        unit_ids=Units(owners, combine=combine),
        **options,
    )
    return engine, model, made[1], made[2], made[0]


def fit(run, local):
    engine, model, optimizer, loader, module = run
    while engine.releases < engine.mechanism.steps:
        for batch in loader:
            optimizer.zero_grad()
            if local is None:
                nn.CrossEntropyLoss(reduction=optimizer.loss_reduction)(module(batch[0]), batch[1]).backward()
            else:
                local(batch)
            optimizer.step()
    return weights(model)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("steps", "size"), [(1, None), (3, None), (4, 2), (5, 40)])
def test_one_unit_is_what_sgd_on_a_copy_does(reduction, steps, size):
    model, (x, y) = network().double(), data(7).tensors
    x, criterion = x.double(), nn.CrossEntropyLoss(reduction=reduction)
    before = weights(model)
    found = pseudo_gradient(
        model, criterion, (x, y), local_steps=steps, learning_rate=0.2, local_batch_size=size
    )
    wanted = by_hand(model, criterion, x, y, steps=steps, rate=0.2, size=size)
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-12)
    assert torch.equal(before, weights(model))


def test_one_local_step_is_the_gradient_itself():
    model, (x, y) = network(), data(7).tensors
    found = pseudo_gradient(model, nn.CrossEntropyLoss(), (x, y), local_steps=1, learning_rate=1e-4)
    nn.CrossEntropyLoss()(model(x), y).backward()
    for name, p in model.named_parameters():  # to rounding, although eta is small: nothing cancels
        torch.testing.assert_close(found[name], p.grad, rtol=1e-5, atol=1e-7)


def test_a_direction_to_descend_along():
    model, (x, y) = network(), data(30).tensors
    found = pseudo_gradient(model, nn.CrossEntropyLoss(), (x, y), local_steps=5, learning_rate=0.5)
    before = nn.CrossEntropyLoss()(model(x), y)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p -= 0.5 * found[name]
    assert nn.CrossEntropyLoss()(model(x), y) < before - 0.05


@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize(
    "how", [LocalSteps(1, 0.1), LocalSteps(3, 0.3), LocalSteps(4, 0.2, 3), LocalSteps(2, 0.2, 1)]
)
@pytest.mark.few(5)
def test_vectorised_over_padded_units_equals_one_after_the_other(combine, how):
    model, (x, y) = network().double(), data(32).tensors
    rows = [np.flatnonzero(unit == OWNERS) for unit in range(len(SIZES))]
    criterion = nn.CrossEntropyLoss()
    both = [
        unit_pseudo_gradients(
            model, criterion, (x.double(), y), rows, how, combine=combine, vectorize=vectorize
        )
        for vectorize in (True, False)
    ]
    single = nn.CrossEntropyLoss(reduction=combine)
    for unit, own in enumerate(rows):
        wanted = by_hand(
            model, single, x[own].double(), y[own], steps=how.local_steps, rate=how.learning_rate,
            size=how.local_batch_size,
        )  # fmt: skip
        for name, tensor in wanted.items():
            for found in both:
                torch.testing.assert_close(found[name][unit], tensor, rtol=1e-9, atol=1e-12)


def test_convolutions_and_frozen_parameters():
    model = nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 2), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(15, 2)
    ).double()
    model[1].bias.requires_grad_(False)
    x, y = data(32).tensors
    rows = [np.flatnonzero(unit == OWNERS) for unit in range(len(SIZES))]
    one, other = (
        unit_pseudo_gradients(
            model,
            nn.CrossEntropyLoss(),
            (x.double(), y),
            rows,
            LocalSteps(3, 0.3),
            combine="mean",
            vectorize=v,
        )
        for v in (True, False)
    )
    assert one.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("reduction", "combine", "mode"), each_pair(["sum", "mean"], ["sum", "mean"], ["rows"])
)
@pytest.mark.slow
def test_one_local_step_releases_what_the_path_over_unit_gradients_releases(mode, combine, reduction):
    wanted = fit(run_of(combine=combine, reduction=reduction, grad_sample_mode=mode), None)
    for vectorize in (True, False):
        run = run_of(combine=combine, reduction=reduction, grad_sample_mode=mode)
        criterion = nn.CrossEntropyLoss(reduction=reduction)
        local = run[0].pseudo_gradients(criterion, local_steps=1, learning_rate=0.7, vectorize=vectorize)
        torch.testing.assert_close(fit(run, local), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_several_local_steps_through_the_engine_equal_a_loop_by_hand():
    engine, model, optimizer, loader, _ = run_of(combine="mean", std=1e-12, steps=6)
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=3, learning_rate=0.4)
    mine, sums = network().double(), []
    fit(
        (engine, model, optimizer, loader, None),
        lambda batch: (sums.append(engine._run.ledger.in_hand), local(batch)),
    )
    for delivery in sums:
        (x, y), batch = delivery.content, delivery.units
        total = {name: torch.zeros_like(p) for name, p in mine.named_parameters()}
        for unit in range(batch.count):
            rows = torch.from_numpy(batch.rows_of(unit))
            one = by_hand(mine, nn.CrossEntropyLoss(), x[rows], y[rows], steps=3, rate=0.4)
            norm = torch.sqrt(sum(g.square().sum() for g in one.values()))
            for name, g in one.items():
                total[name] += g * min(1.0, 1.0 / float(norm))
        with torch.no_grad():
            for name, p in mine.named_parameters():
                p -= 0.1 * total[name] / 4
    torch.testing.assert_close(weights(model), weights(mine), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_shared_examples_are_items_of_their_own():
    owners = [(int(u), 0) if i % 5 == 0 else (int(u),) for i, u in enumerate(OWNERS)]
    wanted = fit(run_of(owners=owners, combine="mean"), None)
    run = run_of(owners=owners, combine="mean")
    local = run[0].pseudo_gradients(nn.CrossEntropyLoss(), local_steps=1, learning_rate=0.3)
    torch.testing.assert_close(fit(run, local), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_micro_batches_and_empty_batches():
    results = []
    for most in (None, 12):
        engine, model, optimizer, loader, _ = run = run_of(steps=16, kind="poisson", std=0.5)
        local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=3, learning_rate=0.3)
        if most is None:
            sizes = [len(loader.feed.batches.batch(t)) for t in range(16)]
            assert 0 in sizes and max(sizes) > 12  # both happen under this key
            fit(run, local)
        else:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=most, optimizer=optimizer
            ) as parts:
                fit((engine, model, optimizer, parts, None), local)
        results.append(weights(model))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)


def test_hooks_are_left_out_and_put_back():
    engine, model, optimizer, loader, module = run_of()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))  # the user's stays
    before = [dict(layer._forward_hooks) for layer in model.modules()]
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.3, vectorize=False)
    batch = next(iter(loader))
    local(batch)
    units = engine._run.ledger.in_hand.units.count
    assert len(seen) == 2 * units
    assert [dict(layer._forward_hooks) for layer in model.modules()] == before
    optimizer.step()
    assert engine.releases == 1
    for batch in loader:  # and ordinary gradients work after it
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(module(batch[0]), batch[1]).backward()
        optimizer.step()
        break
    assert engine.releases == 2


# The model is left as it was.


class Shared(nn.Module):
    """One layer under two names, or two layers with one weight."""

    def __init__(self, whole=True):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 2)
            self.c = self.a if whole else nn.Linear(FEATURES, FEATURES)
        if not whole:
            self.c.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.c(torch.tanh(self.a(x)))))


def places(model):
    return {name: (id(p), p._version) for name, p in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("whole", [True, False])
def test_shared_weights_take_the_same_steps_and_stay_in_the_model(whole):
    model, (x, y) = Shared(whole).double(), data(7).tensors
    x, before, where = x.double(), weights(model), places(model)
    found = pseudo_gradient(model, nn.CrossEntropyLoss(), (x, y), local_steps=3, learning_rate=0.4)
    wanted = by_hand(model, nn.CrossEntropyLoss(), x, y, steps=3, rate=0.4)
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-12)
    assert torch.equal(before, weights(model)) and where == places(model)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.slow
def test_shared_weights_in_the_engine(whole, vectorize):
    model, copy = Shared(whole), Shared(whole).double()  # Opacus has no gradients for tied parameters
    engine, _, optimizer, loader, _ = run_of(model=model, combine="mean", std=1e-12)
    local = engine.pseudo_gradients(
        nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.4, vectorize=vectorize
    )
    x, y = next(iter(loader))
    before, where = weights(model), places(model)
    local((x, y))
    assert torch.equal(before, weights(model)) and where == places(model)
    own = engine._run.ledger.in_hand.units
    total = torch.zeros_like(before)
    for unit in range(own.count):
        rows = torch.from_numpy(own.rows_of(unit))
        one = by_hand(copy, nn.CrossEntropyLoss(), x[rows], y[rows], steps=2, rate=0.4)
        vector = torch.cat([g.reshape(-1) for g in one.values()])
        total += vector * min(1.0, 1.0 / float(vector.norm()))
    optimizer.step()
    torch.testing.assert_close(weights(model), before - 0.1 * total / 4, rtol=1e-7, atol=1e-9)


class Failing(nn.CrossEntropyLoss):
    """Raises in the second local step."""

    calls = 0

    def forward(self, out, y):
        Failing.calls += 1
        if Failing.calls > 1:
            raise KeyError("no such label")
        return super().forward(out, y)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("vectorize", [True, False])
def test_an_exception_leaves_no_local_weights(whole, vectorize):
    model, (x, y) = Shared(whole), data(32).tensors
    before, where, Failing.calls = weights(model), places(model), 0
    rows = [np.arange(16), np.arange(16, 32)]
    with pytest.raises(KeyError, match="no such label"):
        unit_pseudo_gradients(
            model, Failing(), (x, y), rows, LocalSteps(3, 1.0), combine="mean", vectorize=vectorize
        )
    assert Failing.calls == 2
    assert torch.equal(before, weights(model)) and where == places(model)


class Meddling(nn.Module):
    """A forward pass that replaces, or edits, something of the model."""

    def __init__(self, how, fail=False):
        super().__init__()
        self.linear = nn.Linear(FEATURES, 2)
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("empty", None)
        self.how, self.fail, self.hidden = how, fail, [self.linear.weight]

    def forward(self, x):
        if self.how == "rebound":
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        elif self.how == "filled":
            self.empty = x.mean(0)
        elif self.how == "swapped":
            self.register_parameter("scale", nn.Parameter(torch.ones(())))
        elif self.how == "edited":
            with torch.no_grad():
                self.hidden[0].mul_(0.5)
        if self.fail:
            raise KeyError("failed")
        return self.linear(x - self.mean)


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("how", ["rebound", "filled", "swapped", "edited"])
def test_models_that_change_themselves_are_put_back(how, fail, vectorize):
    x, y = data(32).tensors
    model = Meddling(how, fail)
    before, state = weights(model), {name: t.clone() for name, t in model.state_dict().items()}
    arguments = (model, nn.CrossEntropyLoss(), (x, y), [np.arange(9), np.arange(9, 32)], LocalSteps(3, 0.1))
    error, said = (KeyError, "failed") if fail else (GuaranteeError, "changed in the local steps")
    if how == "edited" and vectorize:  # torch refuses it there
        error, said = UnsupportedError, "vectorize=False"
    with pytest.raises(error, match=said):
        unit_pseudo_gradients(*arguments, combine="sum", vectorize=vectorize)
    assert torch.equal(before, weights(model)) and model.empty is None
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


class Fickle(nn.Module):
    """A layer with a buffer that every pass changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, 2)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.linear(x)


def test_layers_that_mix_or_change_are_refused():
    x, y = data(6).tensors
    options = {"local_steps": 2, "learning_rate": 0.1}
    with pytest.raises(GuaranteeError, match="batch normalisation"):
        pseudo_gradient(
            nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3)), nn.CrossEntropyLoss(), (x, y), **options
        )
    with pytest.raises(GuaranteeError, match="passes changed in the local steps without noise"):
        pseudo_gradient(Fickle(), nn.CrossEntropyLoss(), (x, y), **options)


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)


def test_models_that_vmap_cannot_run_say_so_and_run_one_by_one():
    x, y = data(32).tensors
    rows = [np.flatnonzero(unit == OWNERS) for unit in range(len(SIZES))]
    model = Branching(FEATURES, 2)
    arguments = (model, nn.CrossEntropyLoss(), (x, y), rows, LocalSteps(2, 0.1))
    with pytest.raises(UnsupportedError, match="vectorize=False"):
        unit_pseudo_gradients(*arguments, combine="sum")
    found = unit_pseudo_gradients(*arguments, combine="sum", vectorize=False)
    assert found["weight"].shape == (8, 2, FEATURES)


@pytest.mark.slow
def test_what_is_not_the_delivered_batch_is_refused():
    engine, _, optimizer, loader, module = run_of()
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.1)
    with pytest.raises(DesynchronizedError, match="no batch was delivered"):
        local((torch.zeros(3, FEATURES), torch.zeros(3, dtype=torch.long)))
    x, y = next(iter(loader))
    with pytest.raises(DesynchronizedError, match="rows reached the local steps"):
        local((x[1:], y[1:]))
    with pytest.raises(DesynchronizedError, match="not one row an"):
        local((x.flip(0), y.flip(0)))
    with pytest.raises(ValueError, match=r"\(input, …, target\)"):
        local({"x": x, "y": y})
    local((x, y))
    nn.CrossEntropyLoss()(module(x), y).backward()
    with pytest.raises(DesynchronizedError, match="only one of"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(
        DesynchronizedError, match="no gradient reached"
    ):  # zero_grad() drops what was contributed
        optimizer.step()
    local((x, y))
    optimizer.step()
    assert engine.releases == 1


@pytest.mark.parametrize("where", ["target", "eval", "no_grad"])
@pytest.mark.slow
def test_another_order_is_refused_wherever_it_comes_from(where):
    engine, model, optimizer, loader, _ = run_of()
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.1)
    x, y = next(iter(loader))
    model.train(where != "eval")
    given = (x, y.flip(0)) if where == "target" else (x.flip(0), y.flip(0))
    with torch.set_grad_enabled(where != "no_grad"):
        with pytest.raises(DesynchronizedError, match="not one row an"):
            local(given)
        local((x, y))
    model.train()
    optimizer.step()
    assert engine.releases == 1


def test_the_batch_is_one_argument():
    engine, _, _, loader, _ = run_of()
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.1)
    batch = next(iter(loader))
    with pytest.raises(TypeError, match=r"local\(batch\)"):
        local(*batch)


def test_contributions_that_are_no_tensors_are_refused():
    engine, _, optimizer, loader, _ = run_of()
    next(iter(loader))
    for given in ([1, 2], None, torch.zeros(4, 3), [None]):
        with pytest.raises(MismatchError, match="list of tensors"):
            optimizer.contribute(given)
    assert engine.releases == 0


# Resuming.

SAME = {"local_steps": 2, "learning_rate": 0.1}


def go_on(run, how, *, until, contribute=None):
    engine, _, optimizer, loader, module = run
    local = engine.pseudo_gradients(nn.CrossEntropyLoss(), **how) if how else None
    for x, y in loader:
        optimizer.zero_grad()
        if contribute is not None:
            count = engine._run.ledger.in_hand.units.count
            optimizer.contribute([p.new_ones((count, *p.shape)) for p in optimizer.params], kind=contribute)
        elif local is not None:
            local((x, y))
        else:
            nn.CrossEntropyLoss()(module(x), y).backward()
        optimizer.step()
        if engine.releases == until:
            break


@pytest.mark.parametrize(
    ("first", "second"),
    every_other(
        [
            (SAME, SAME | {"local_steps": 4}),
            (SAME, SAME | {"learning_rate": 0.2}),
            (SAME, SAME | {"local_batch_size": 1}),
            (SAME, SAME | {"vectorize": False}),
            (SAME, None),
            (None, SAME),
        ]
    ),
)
@pytest.mark.slow
def test_a_resumed_run_keeps_to_its_contributions(first, second, tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "_MADE", {})
    path = tmp_path / "run.ckpt"
    whole = run_of()
    go_on(whole, first, until=2)
    whole[0].save_checkpoint(path=path)
    with pytest.raises(ReplayError, match="before the checkpoint was made of"):  # nor the first process
        go_on(whole, second, until=3)
    go_on(whole, first, until=4)
    ledger._MADE.clear()
    resumed = run_of()
    resumed[0].load_checkpoint(path=path)
    resumed[0].save_checkpoint(path=path)  # keeps what it read
    with pytest.raises(ReplayError, match="before the checkpoint was made of"):
        go_on(resumed, second, until=3)
    assert resumed[0].releases == 2
    go_on(resumed, first, until=4)
    assert torch.equal(weights(whole[1]), weights(resumed[1]))


@pytest.mark.slow
def test_contributions_of_ones_own_have_a_name_to_keep_to(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "_MADE", {})
    path = tmp_path / "run.ckpt"
    run = run_of()
    run[0].save_checkpoint(path=path)  # before the first release: anything may follow
    go_on(run, None, until=1, contribute="ones")
    run[0].save_checkpoint(path=path)
    ledger._MADE.clear()
    resumed = run_of()
    resumed[0].load_checkpoint(path=path)
    with pytest.raises(ReplayError, match="made of twos, and .* made of ones"):
        go_on(resumed, None, until=2, contribute="twos")
    go_on(resumed, None, until=2, contribute="ones")
    go_on(resumed, SAME, until=3)  # a change at another step is a matter of the script
    assert resumed[0].releases == 3


def test_arguments_out_of_range():
    x, y = data(6).tensors
    good = {"local_steps": 2, "learning_rate": 0.1}
    for change, said in (
        ({"local_steps": 0}, "local_steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"local_batch_size": 0}, "local_batch_size"),
    ):
        with pytest.raises(ValueError, match=said):
            pseudo_gradient(network(), nn.CrossEntropyLoss(), (x, y), **good | change)
    with pytest.raises(ValueError, match="no row"):
        pseudo_gradient(network(), nn.CrossEntropyLoss(), (x[:0], y[:0]), **good)
    with pytest.raises(ValueError, match="reduction"):
        pseudo_gradient(network(), nn.CrossEntropyLoss(reduction="none"), (x, y), **good)
    with pytest.raises(UnsupportedError, match="one loss an example"):
        pseudo_gradient(network(), nn.MSELoss(), (x, torch.zeros(6, 2)), **good)


def test_runs_without_units_are_refused():
    for mode in ("rows", "ghost"):
        with pytest.raises(UnsupportedError, match="unit_ids"):
            start(mode).engine.pseudo_gradients(nn.CrossEntropyLoss(), local_steps=1, learning_rate=0.1)
    engine = run_of()[0]
    with pytest.raises(UnsupportedError, match="criterion"):
        engine.pseudo_gradients(lambda out, y: out.sum(), local_steps=1, learning_rate=0.1)


@pytest.mark.slow
def test_the_example_of_the_documentation_runs():
    page = Path(__file__).parents[2].joinpath("docs", "users.md").read_text(encoding="utf-8")
    section = page.split("\n## Can a person train several steps at once?")[1].split("\n## ")[0]
    namespace = {}
    exec(section.split("```python\n")[1].split("```")[0], namespace)
    engine = namespace["engine"]
    assert engine.releases == engine.mechanism.steps == 10
    assert 0 < engine.get_epsilon(1e-4) <= 8.0
