"""A loss that is given one row at a time: sums are those of a loop over single rows, whatever the loss is."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine

ROWS, CLIP = 8, 0.3
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self, returned=lambda out, x: out):
        super().__init__()
        self.layer, self.returned = nn.Linear(6, 2), returned

    def forward(self, x):
        return self.returned(self.layer(x), x)


def outputs_of_hugging_face(out, x):
    modeling = pytest.importorskip("transformers.modeling_outputs")
    loss = F.cross_entropy(out, (x[:, 0] > 0).long())
    return modeling.SequenceClassifierOutput(loss=loss, logits=out)


class Weighted(nn.Module):
    """Keeps a running mean of what it has seen, in a number and in a buffer, and a count of calls."""

    def __init__(self):
        super().__init__()
        self.mean, self.calls = 1.0, 0
        self.register_buffer("centre", torch.ones(2))

    def forward(self, out, y):
        loss = F.cross_entropy(out, y) * self.mean * (1 + (out - self.centre).square().mean())
        self.mean, self.calls = 0.5 * self.mean + 0.5 * loss.item(), self.calls + 1
        self.centre.mul_(0.5).add_(out.detach().mean(0))
        return loss


def cross(out, y, **keywords):
    return F.cross_entropy(out, y, **keywords)


def branching(out, y):
    return F.cross_entropy(out, y) if y.item() > 0 and (out > -9).all() else -2 * out[y == 0].sum()


def raising(out, y):
    if out[0, 0] > 0.5:
        raise ValueError("no loss for this row")
    return F.cross_entropy(out, y)


def contrasting(out, y):
    alike = F.cross_entropy(3 * out @ out.T + out.mean(), torch.arange(len(out)))
    return alike + (out - 2 * out.mean(0)).square().sum()


class Case:
    """A loop: what the module returns, the user's criterion, and how the script calls the private one."""

    def __init__(self, criterion=cross, call=lambda loss, out, y: loss(out, y), **options):
        self.criterion, self.call = criterion, call
        self.returned = options.pop("returned", lambda out, x: out)
        self.under = options.pop("under", nullcontext)
        self.options = options


CASES = {
    "plain": Case(),
    "in chunks": Case(chunk_rows=4),
    "a layer": Case(nn.CrossEntropyLoss()),
    "class weights have no effect across rows": Case(nn.CrossEntropyLoss(torch.tensor([1.0, 30.0]))),
    "one loss a row": Case(nn.CrossEntropyLoss(reduction="none")),
    "sums": Case(nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"),
    "rows against rows": Case(contrasting),
    "decisions by rows": Case(branching),
    "a row that fails counts as zero": Case(raising),
    "state is taken back": Case(Weighted()),
    "keywords": Case(call=lambda loss, out, y: loss(out=out, y=y, label_smoothing=0.1)),
    "targets in a dict": Case(
        lambda out, given: F.cross_entropy(out, given["y"][0]), lambda loss, out, y: loss(out, {"y": [y]})
    ),
    "targets through NumPy": Case(call=lambda loss, out, y: loss(out, torch.from_numpy(y.numpy() * 1))),
    "a tuple": Case(
        lambda pair, y: cross(pair[0], y) + pair[1].square().sum(), returned=lambda out, x: (out, 2 * out)
    ),
    "logits of transformers": Case(
        call=lambda loss, out, y: loss(out.logits, y), returned=outputs_of_hugging_face
    ),
    "outputs of transformers": Case(
        lambda out, y: out.loss + out.logits.square().mean(), returned=outputs_of_hugging_face
    ),
    "outputs that were worked on": Case(
        call=lambda loss, out, y: loss(2 * out.flip(1)[:, None].squeeze(1), y)
    ),
    "a factor": Case(call=lambda loss, out, y: loss(out, y) / 200),
    "two losses": Case(call=lambda loss, out, y: 0.001 * loss(out, y) + 0.003 * loss(out, y)),
    "a term beside it": Case(call=lambda loss, out, y: loss(out, y) + 0 * out.square().mean()),
    "masked logits": Case(
        lambda out, y: cross(out, y), returned=lambda out, x: F.pad(out, (0, 1), value=float("-inf"))
    ),
    "time first": Case(
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.expand(3, -1).flatten()),
        returned=lambda out, x: torch.cat([out, 2 * out, out - 1]),
        batch_first=False,
    ),
    "time first, targets too": Case(
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        lambda loss, out, y: loss(out, y[None].repeat(3, 1)),
        returned=lambda out, x: torch.cat([out, 2 * out, out - 1]),
        batch_first=False,
    ),
    "autocast": Case(under=lambda: torch.autocast("cpu", torch.bfloat16)),
    "a compiled function": Case(torch.compile(cross, backend="eager")),
    "a compiled layer": Case(torch.compile(nn.CrossEntropyLoss(), backend="eager")),
}


def time_first(batch):
    """What is labelled by its second axis."""
    x, y = torch.utils.data.default_collate(batch)
    return x[None], y


def begun(case, x=X, y=Y, sampling=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Net(case.returned)
    sampling, options = sampling or FixedOrder(len(x), len(x), 1), dict(case.options)
    collate = time_first if "batch_first" in options else None
    engine = PrivacyEngine(sampling_key=bytes(range(32)), chunk_rows=options.pop("chunk_rows", None))
    module, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        criterion=case.criterion,
        data_loader=DataLoader(
            TensorDataset(x, y), batch_size=int(sampling.expected_size(0)), collate_fn=collate
        ),
        grad_sample_mode="vmap_loss",
        mechanism=Mechanism(Identity(sampling.steps), sampling, 1e-7, CLIP),
        **{"poisson_sampling": False, **options},
    )
    return SimpleNamespace(**{k: v for k, v in locals().items() if k not in ("x", "y")})


def released(case, x=X, y=Y):
    """The sum of a batch."""
    run, count = begun(case, x, y), 1 if "loss_reduction" in case.options else len(x)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        with case.under():
            loss = case.call(run.criterion, run.module(x), y)
        assert loss.dim() == 0
        loss.backward()
        run.optimizer.step()
    return count * torch.cat([p.grad.flatten() for p in run.model.parameters()])


def of_single_rows(case, name):
    total = 0
    model = begun(case).model
    plain = getattr(case.criterion, "_orig_mod", cross if "compiled" in name else case.criterion)
    collate = time_first if "batch_first" in case.options else torch.utils.data.default_collate
    for i in range(ROWS):
        x, y = collate([(X[i], Y[i])])
        try:
            with case.under():
                loss = case.call(copy.deepcopy(plain), model(x), y).reshape(())
        except ValueError:
            continue
        row = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total = total + row * min(1.0, CLIP / float(row.norm()))
    return total


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_single_rows(name):
    case = CASES[name]
    want, found = of_single_rows(case, name), released(case)
    assert float((found - want).norm()) <= (3e-2 if name == "autocast" else 1e-5) * float(want.norm())
    rest = released(case, X[1:], Y[1:])
    assert float((found - rest).norm()) <= 1.001 * CLIP


class Owning(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, out, y):
        return F.cross_entropy(self.scale * out, y)


OUTSIDE = nn.Linear(2, 2)
REFUSED = {
    "rows in another order": (cross, lambda loss, out, y: loss(out.flip(0), y), DesynchronizedError, "flip"),
    "centred": (cross, lambda loss, out, y: loss(out - out.mean(0), y), DesynchronizedError, "one row an"),
    "a part of the rows": (cross, lambda loss, out, y: loss(out, y[:3]), DesynchronizedError, "one row"),
    "shared targets": (cross, lambda loss, out, y: loss(out, torch.zeros(3)), UnsupportedError, "one row"),
    "two numbers": (lambda out, y: out[0], lambda loss, out, y: loss(out, y), UnsupportedError, "no number"),
    "weights of its own": (Owning(), lambda loss, out, y: loss(out, y), GuaranteeError, "weight of its own"),
    "a penalty": (
        lambda out, y: cross(out, y) + OUTSIDE.weight.square().sum(),
        lambda loss, out, y: loss(out, y),
        GuaranteeError,
        "weight_decay",
    ),
    "a parameter as target": (
        lambda out, y, p: cross(out, y),
        lambda loss, out, y: loss(out, y, nn.Parameter(torch.ones(ROWS))),
        UnsupportedError,
        "input of the criterion requires a gradient",
    ),
    "past the criterion, mixing": (
        cross,
        lambda loss, out, y: loss(out, y) + (out - out.mean(0)).norm(),
        GuaranteeError,
        "mixes rows",
    ),
    "a root of the mean": (cross, lambda loss, out, y: loss(out, y).sqrt(), GuaranteeError, "mixes rows"),
    "another net": (cross, lambda loss, out, y: loss(OUTSIDE(out), y), GuaranteeError, "outside of the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    criterion, call, error, words = REFUSED[name]
    run = begun(Case(criterion, call))
    x, y = next(iter(run.loader))
    with pytest.raises(error, match=words):
        call(run.criterion, run.module(x), y).backward()
        run.optimizer.step()
    assert run.engine.releases == 0


def test_other_data_than_the_batch_in_hand_is_the_users_own():
    run = begun(Case(nn.CrossEntropyLoss(label_smoothing=0.1)))
    own = run.case.criterion(run.model(X[:3]), Y[:3])
    assert torch.equal(run.criterion(run.model(X[:3]), Y[:3]), own)
    x, y = next(iter(run.loader))
    assert torch.equal(run.criterion(run.model(X[:3]), Y[:3]), own)
    with torch.no_grad():
        assert torch.allclose(run.criterion(run.module(x), y), run.case.criterion(run.model(X), Y))
    loss = run.criterion(run.module(x), y)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_batch_of_no_rows_is_a_release_too():
    run = begun(Case(poisson_sampling=True), sampling=Poisson(ROWS, 1, 12))
    sizes = []
    for x, y in run.loader:
        sizes.append(len(x))
        loss = run.criterion(run.module(x), y)
        assert torch.isfinite(loss)
        loss.backward()
        run.optimizer.step()
    assert run.engine.releases == len(sizes) and 0 in sizes
