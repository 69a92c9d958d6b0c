"""Labels of rows: rules against what a row's gradient depends on, sums against loops, mixed losses."""

import copy
import gc
import secrets

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import GuaranteeError
from anechoic.torch import BatchMemoryManager, PrivacyEngine, label_rules  # noqa: F401
from anechoic.torch.labels import MARKED, LabelledBatch, LabelledTensor, OnAxis, OverRows, plain
from anechoic.torch.sources.row_model import undisturbed
from tests.torch.label_fuzz import program
from tests.torch.label_programs import APART, DIVIDED, MIXED, ROWS, WIDTH
from tests.torch.setting import managed, mechanism, start, step
from tests.torch.setting import private as made_private

pytestmark = pytest.mark.filterwarnings("ignore")
#: Losses that keep rows apart, and are refused all the same.
NEEDLESS = {"picked by a mask"}


def numbers(seed):
    draw = torch.Generator().manual_seed(seed)
    o, x = (torch.randn(ROWS, WIDTH, generator=draw) for _ in range(2))
    return o, torch.randint(0, WIDTH, (ROWS,), generator=draw), x


def cotangent(program, o, y, x):
    """Plain: the gradient at the outputs, of the loss times the number of rows."""
    o = o.clone().requires_grad_()
    (ROWS * program(o * 1, y, x)).backward()
    return o.grad


def verdict(program, o, y, x, rows=ROWS):
    """By labels: "" where rows are apart, else why they are not."""
    batch = LabelledBatch(rows, means=True, parameters=[])
    leaf = LabelledTensor(o.clone(), OnAxis(0), batch, requires_grad=True)
    batch.outputs = [leaf]
    y, x = LabelledTensor(y, OnAxis(0), batch), LabelledTensor(x, OnAxis(0), batch)
    program(leaf * 1, y, x).backward()
    root, grad = batch.roots[0], leaf.grad
    label = grad.label if type(grad) is LabelledTensor else None
    if label not in (None, OnAxis(0)):
        return getattr(label, "why", str(label)), plain(grad)
    if root != OverRows(-1):
        return f"root {getattr(root, 'why', root)}", plain(grad)
    return "", plain(grad)


def depends(program, o, y, x, seeds=(3, 4, 5)):
    """Whether the gradient of some row moves with numbers of others."""
    before = cotangent(program, o, y, x)
    for row in range(ROWS):
        for seed in seeds:
            there = numbers(seed)
            mine = [t.clone() for t in there]
            for t, own in zip(mine, (o, y, x), strict=True):
                t[row] = own[row]
            after = cotangent(program, *mine)[row]
            if not torch.allclose(after, before[row], rtol=1e-4, atol=1e-6, equal_nan=True):
                return True
    return False


@pytest.mark.parametrize("name", sorted(APART))
def test_losses_of_single_rows_pass(name):
    given = numbers(0)
    why, grad = verdict(APART[name], *given)
    assert not depends(APART[name], *given), "the table is wrong"
    if name in NEEDLESS:
        assert why
        return
    assert why == ""
    expected = cotangent(APART[name], *given)
    assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MIXED))
def test_losses_that_mix_are_refused(name):
    why, _ = verdict(MIXED[name], *numbers(0))
    assert why
    assert depends(MIXED[name], *numbers(0)), "the table is wrong"


@pytest.mark.parametrize("name", sorted(DIVIDED))
def test_a_mean_is_over_all_targets_whatever_a_batch_holds(name):
    said, meant = DIVIDED[name]
    why, grad = verdict(said, *numbers(0))
    assert why == ""
    assert torch.allclose(grad, cotangent(meant, *numbers(0)), atol=1e-6)


def test_products_along_three_rows_mix():
    public = torch.linspace(-1, 1, 9).reshape(3, 3)
    o, y, x = torch.randn(3, 3), torch.zeros(3, dtype=torch.long), torch.randn(3, 3)
    assert verdict(lambda o, y, x: torch.linalg.cross(o, public, dim=0).square().mean(), o, y, x, rows=3)[0]
    assert not verdict(lambda o, y, x: torch.linalg.cross(o, x).square().mean(), o, y, x, rows=3)[0]


def test_views_in_place_keep_their_rows():
    def program(o, y, x):
        z = x.clone().unsqueeze_(1).transpose_(0, 1)
        return (o * z.squeeze_(0) * y.clone().unsqueeze_(1).t_().T).sum(1).square().mean()

    why, grad = verdict(program, *numbers(0))
    assert why == ""
    assert torch.allclose(grad, cotangent(program, *numbers(0)), atol=1e-5)


FUZZED, SIDE = 250, 4


def judged(seed):
    """(what the labels say, whether rows depend on others) of a random program; None if it does not run."""
    loss, draw = program(seed), torch.Generator().manual_seed(seed)

    def drawn():
        o, x = (torch.randn(SIDE, SIDE, generator=draw) for _ in range(2))
        return o, torch.randint(0, SIDE, (SIDE,), generator=draw), x

    given = drawn()
    try:
        leaf = given[0].clone().requires_grad_()
        (SIDE * loss(leaf * 1.0, *given[1:])).backward()
        expected = leaf.grad
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None
    if expected is None or not bool(torch.isfinite(expected).all()):
        return None
    try:
        why, grad = verdict(loss, *given, rows=SIDE)
    except RuntimeError as error:  # inner errors would hide holes
        return f"raised {error}", None
    if why:
        return why, None
    assert torch.allclose(grad, expected, rtol=1e-3, atol=1e-4), (seed, grad, expected)
    others = [drawn() for _ in range(3)]
    for row in range(SIDE):
        for there in others:
            mine = [t.clone() for t in there]
            for t, own in zip(mine, given, strict=True):
                t[row] = own[row]
            o = mine[0].requires_grad_()
            (SIDE * loss(o * 1.0, *mine[1:])).backward()
            if not torch.allclose(o.grad[row], expected[row], rtol=1e-3, atol=1e-4, equal_nan=True):
                return "", True
    return "", False


def test_random_programs_have_no_hole():
    passed = 0
    for seed in range(FUZZED):
        found = judged(seed)
        if found is not None and not found[0]:
            passed += 1
            assert not found[1], f"program {seed} is called apart, and is not"
        assert found is None or not found[0].startswith("raised"), (seed, found[0])
    assert passed > FUZZED // 8  # some programs are apart


# -- whole steps ----------------------------------------------------------------------------------


def private(
    module, tensors, batch_size, *, lr=0.1, sampling_key=None, exact=False, reduction="mean", **options
):
    keys = {"noise_key": secrets.token_bytes(32), "sampling_key": sampling_key or secrets.token_bytes(32)}
    given = {"noise_multiplier": 1e-6, "mechanism": "identity", "epochs": 1, "max_grad_norm": 1.0, **options}
    return made_private(
        PrivacyEngine(**keys), model=module, optimizer=torch.optim.SGD(module.parameters(), lr=lr),
        loader=DataLoader(TensorDataset(*tensors), batch_size=batch_size), target_delta=1e-3,
        poisson_sampling=False, grad_sample_mode="rows", loss_reduction=reduction, exact_sums=exact, **given,
    )  # fmt: skip


def clipped_sums(module, rows, loss):
    """By a loop over single rows."""
    totals = [torch.zeros_like(p) for p in module.parameters()]
    for row in range(len(rows[0])):
        one = [t[row : row + 1] for t in rows]
        with undisturbed(module):  # each row is the first one
            found = torch.autograd.grad(loss(module, *one), list(module.parameters()), allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for g, p in zip(found, totals, strict=True)]
        norm = torch.sqrt(sum(g.square().sum() for g in found))
        for total, g in zip(totals, found, strict=True):
            total += g * min(1.0, float(1.0 / norm))
    return totals


class Gate(nn.Module):
    """Each row decides by its own number how often it is multiplied with 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(24, 1, bias=False)

    def forward(self, x, n):
        h = self.a(x)
        for _ in range(int(n)):
            h = h * 1.0
        return torch.relu(h).squeeze(1)


@pytest.mark.parametrize("number", [3, 11, 40])
def test_a_row_that_takes_another_way_moves_nobody_elses_kernels(number):
    """Rows at a gate, whose sign depends on the kernel: the others stay, here and in the next batch."""
    count, draw = 32, torch.Generator().manual_seed(3)
    w = Gate().a.weight.detach()[0].double()
    near = torch.randn(24, generator=draw).double()
    rows = (near - (near @ w) / (w @ w) * w)[None] * (1 + torch.rand(2 * count, 1, generator=draw))
    x, n = rows.float(), torch.arange(2 * count) % 8
    x[0], n[0] = torch.randn(24, generator=draw), 0
    found = []
    for way in (0, number):
        n = n.clone()
        n[0] = way
        model, optimizer, loader = private(Gate(), (x, n, torch.zeros(2 * count)), count, lr=0.0)
        mine = []
        for a, b, _ in loader:
            model(a, b).mean().backward()
            mine.append(optimizer.source.sums(optimizer.ledger.in_hand)[0].clone())
            optimizer.zero_grad()
            model(a, b).mean().backward()
            optimizer.step()
        found.append(mine)
    assert found[0][0].abs().sum() > 0
    assert torch.equal(found[0][0], found[1][0])  # its own gradient is that of the same product
    assert torch.equal(found[0][1], found[1][1])


class Counted(Gate):
    """What it counts weighs later calls, as in a warm-up."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, n):
        self.calls += 1
        self.seen += 1
        if int(n) == 99:
            raise ValueError("a row that fails")
        return super().forward(x, n) * self.calls / (1 + self.seen)


@pytest.mark.parametrize("exact", [False, True])
def test_a_call_counts_once_however_many_ways_its_rows_take(exact):
    torch.manual_seed(0)
    x, found = torch.randn(12, 24), []
    for n in (torch.zeros(12), torch.arange(12.0), torch.tensor([99.0, *[2.0] * 11])):
        model, optimizer, loader = private(Counted(), (x, n.long(), torch.zeros(12)), 6, lr=0.0, exact=exact)
        for a, b, _ in loader:
            model(a, b).mean().backward()
            last = optimizer.source.sums(optimizer.ledger.in_hand)[0].clone()
            optimizer.step()
        assert (model.calls, float(model.seen)) == (2, 2.0)
        found.append(last)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


HOSTILE = {
    "not a number": (float("nan"), 0),
    "infinite": (float("inf"), 3),
    "huge": (1e38, 1),
    "tiny": (1e-40, 1),
    "empty": (0.0, 0),
    "another way": (1.0, 40),
    "below zero": (1.0, -3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_moves_its_own_contribution_alone(name):
    """The sum moves by the same integers whoever else is there, and in the next batch by nothing."""
    (value, way), moved = HOSTILE[name], []
    for seed in (1, 2):
        draw, sums = torch.Generator().manual_seed(seed), []
        x, n = torch.randn(12, 24, generator=draw), torch.arange(12) % 5
        x[2] = torch.linspace(-1, 1, 24)
        for hostile in (False, True):
            if hostile:
                x[2] = x[2] * 0 + value if value in (0.0, 1e-40) else x[2] * value
                n[2] = way
            model, optimizer, loader = private(Gate(), (x, n, torch.zeros(12)), 6, lr=0.0, exact=True)
            mine = []
            for a, b, _ in loader:
                model(a, b).mean().backward()
                mine.append(optimizer.source.sums(optimizer.ledger.in_hand)[0].clone())
                optimizer.step()
            sums.append(mine)
        assert torch.equal(sums[0][1], sums[1][1])
        moved.append(sums[1][0] - sums[0][0])
    assert torch.equal(*moved)


class Drops(nn.Module):
    """Rows that decide by a number, and draw."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, n):
        h = F.dropout(torch.tanh(self.a(x)), 0.5)
        return self.b(h if int(n) == 0 else h * 1.0)


def test_a_row_draws_the_same_whichever_way_others_take():
    torch.manual_seed(0)
    x, y, found = torch.randn(8, 6), torch.randint(0, 3, (8,)), []
    for way in (0, 1):
        n = torch.zeros(8, dtype=torch.long)
        n[0] = way
        model, optimizer, loader = private(Drops(), (x, n, y), 8, sampling_key=bytes(range(32)))
        a, b, t = next(iter(loader))
        F.cross_entropy(model(a, b), t).backward()
        found.append(optimizer.source.sums(optimizer.ledger.in_hand))
    assert all(map(torch.equal, *found)) and bool(found[0][0].any())


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.h = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x, n):
        if int(n) == 9:
            raise ValueError("a row that fails")
        return self.h(self.e(x))


def test_a_row_that_fails_alone_counts_as_zero():
    torch.manual_seed(0)
    x, n, y = torch.randint(0, 5, (6,)), torch.zeros(6, dtype=torch.long), torch.randint(0, 2, (6,))
    n[2] = 9
    module = Fails()
    keep = torch.arange(6) != 2
    expected = clipped_sums(
        module, (x[keep], n[keep], y[keep]), lambda m, x, n, y: F.cross_entropy(m(x, n), y)
    )
    model, optimizer, loader = private(module, (x, n, y), 6)
    for a, b, t in loader:
        F.cross_entropy(model(a, b), t).backward()
        sums = optimizer.source.sums(optimizer.ledger.in_hand)
        break
    for total, wanted in zip(sums, expected, strict=True):
        assert torch.allclose(total, wanted, atol=1e-5)


def linear(batch=12, lr=0.1, **options):
    torch.manual_seed(0)
    x, y = torch.randn(24, 6), torch.randint(0, 4, (24,))
    return private(nn.Linear(6, 4), (x, y, torch.randn(24, 4)), batch, lr=lr, **options)


@pytest.mark.parametrize("name", sorted(MIXED))
def test_a_step_refuses_losses_that_mix(name, monkeypatch):
    monkeypatch.setattr("tests.torch.label_programs.ROWS", 6)
    model, optimizer, loader = linear(6)
    with pytest.raises(GuaranteeError, match="rows|loss that is"):
        for a, y, x in loader:
            optimizer.zero_grad()
            MIXED[name](model(a), y, x).backward()
            optimizer.step()
    assert optimizer.ledger.releases == 0
    optimizer.zero_grad()
    F.cross_entropy(model(a), y).backward()
    optimizer.step()


def test_nothing_watches_the_process_after_a_step():
    model, optimizer, loader = linear()
    for a, y, _ in loader:
        out = model(a)
        F.cross_entropy(out, y).backward()
        optimizer.step()
        assert type(model(torch.randn(3, 6))) is torch.Tensor and optimizer.source.batch is None
        assert not torch.overrides._get_current_function_mode_stack()
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


@pytest.mark.parametrize("how", ["mean", "in place", "queue"])
def test_statistics_of_earlier_batches_are_refused(how):
    model, optimizer, loader = linear(6)
    kept = torch.zeros(6, 4) if how == "queue" else torch.zeros(4)
    with pytest.raises(GuaranteeError, match="earlier batch"):
        for a, _, x in loader:
            optimizer.zero_grad()
            ((model(a) - kept) ** 2).mean().backward()
            optimizer.step()
            if how == "mean":
                kept = 0.9 * kept + 0.1 * x.mean(0)
            elif how == "in place":
                kept.mul_(0.9).add_(x.mean(0))
            else:
                kept[:] = x
    assert optimizer.ledger.releases == 1


def test_marks_end_with_the_memory_that_rows_were_written_to():
    model, optimizer, loader = linear(6)
    gc.collect()
    queue, before = torch.zeros(6, 4), len(MARKED)
    for number, (a, y, x) in enumerate(loader):
        optimizer.zero_grad()
        hot = torch.zeros(6, 4).scatter_(1, y[:, None], 1)
        assert len(MARKED) > before
        (model(a) - hot).square().mean().backward()
        optimizer.step()
        del hot
        assert len(MARKED) - before == (number > 1)
        if number == 1:
            queue[:] = x  # what is kept is remembered
    del queue
    assert len(MARKED) == before


def test_empty_batches_of_the_data_go_through_the_model():
    run, sizes = start(mech=mechanism("poisson", batch_size=2, steps=40), keys=False), set()
    manager = managed(run, 1)
    for batch in run.loader:
        sizes.add(len(batch[0]))
        step(run, batch)
    with manager as parts:
        for batch in parts:
            step(run, batch)
    assert run.engine.releases == 40 and len(sizes) > 2


def test_numbers_leave_a_batch_freely(tmp_path):
    model, optimizer, loader = linear()
    for a, y, x in loader:
        loss = F.cross_entropy(model(a), y)
        assert isinstance(loss.item(), float) and "tensor" in repr(loss) and f"{loss.detach():.3f}"
        assert y.tolist() == list(y.numpy()) and numpy.asarray(y).sum() == int(y.sum())
        assert type(copy.deepcopy(x)) is LabelledTensor and bool((y >= 0).all()) and len(a) == 12
        torch.save(x, tmp_path / "x.pt")
        assert torch.equal(torch.load(tmp_path / "x.pt"), plain(x))
        with torch.no_grad():
            right = (model(a).argmax(1) == y).float().mean()
        total = torch.zeros(())
        total += right
        assert 0 <= float(total) <= 1 and torch.cat([a, a]).shape == (24, 6)
        loss.backward()
        optimizer.step()


def test_a_generator_trained_beside_a_private_discriminator():
    torch.manual_seed(0)
    d, g = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)), nn.Linear(3, 6)
    model, optimizer, loader = private(d, (torch.randn(24, 6),), 12)
    other = torch.optim.Adam(g.parameters(), lr=0.1)
    bce = nn.BCEWithLogitsLoss()
    before = g.weight.detach().clone()
    for (real,) in loader:
        optimizer.zero_grad()
        fake = g(torch.randn(len(real), 3))
        one, two = model(real), model(fake.detach())
        (bce(one, torch.ones_like(one)) + bce(two, torch.zeros_like(two))).backward()
        optimizer.step()
        other.zero_grad()
        out = model(g(torch.randn(len(real), 3)))
        bce(out, torch.ones_like(out)).backward()
        other.step()
    assert optimizer.ledger.releases == 2 and not torch.equal(g.weight, before)


def test_two_runs_in_one_loop_and_a_batch_that_is_given_up():
    (one, first, a), (two, second, b) = linear(), linear()
    for (x, y, _), (z, t, _) in zip(a, b, strict=True):
        first.zero_grad()
        second.zero_grad()
        out = one(x)
        F.cross_entropy(two(z), t).backward()
        F.cross_entropy(out, y).backward()
        first.step()
        second.step()
    assert (first.ledger.releases, second.ledger.releases) == (2, 2)
    (one, first, a), (two, second, b) = linear(), linear()
    x, y, _ = next(iter(a))
    z, t, _ = next(iter(b))
    (F.cross_entropy(one(x), y) + F.cross_entropy(two(z), t)).backward()
    with pytest.raises(GuaranteeError, match="earlier batch|other"):
        first.step()
    first.abandon_batch()
    for x, y, _ in a:
        try:
            F.cross_entropy(one(x), y[:3]).backward()
        except ValueError:
            first.zero_grad()
            F.cross_entropy(one(x), y).backward()
        first.step()
    assert first.ledger.releases == 2


def written(change):
    def loss(out, y, x):
        kept = torch.zeros(len(out))
        losses = F.cross_entropy(out, y, reduction="none")
        change(kept, losses)
        return (losses * kept / kept.sum()).mean()

    return loss


def counted(out, y, x):
    counts = torch.zeros(out.shape[1])
    for k in range(len(counts)):
        counts[k] = (y == k).sum()
    return (F.cross_entropy(out, y, reduction="none") * (1 / (1 + counts))[y]).mean()


def write_all(kept, losses):
    kept[:] = losses.detach()


@pytest.mark.parametrize(
    "loss",
    [
        written(write_all),
        written(lambda kept, losses: kept.copy_(losses.detach())),
        written(lambda kept, losses: [kept.__setitem__(i, one.detach()) for i, one in enumerate(losses)]),
        counted,
        lambda out, y, x: (out - out.gather(1, torch.tensor([[1]])).detach()).square().mean(),
        lambda out, y, x: torch.cdist(out, torch.ones(1, 3, out.shape[1])).mean(),
    ],
    ids=["slice", "copy", "in a loop", "counts", "gather of one row", "distances that broadcast"],
)
def test_what_was_written_or_broadcast_keeps_its_label_by_its_own_name(loss):
    model, optimizer, loader = linear()
    for a, y, x in loader:
        loss(model(a), y, x).backward()
        with pytest.raises(GuaranteeError, match="mixes rows|depends on other rows"):
            optimizer.step()
        break
