"""Mistakes that people make in a training script: what the engine says, and what to write.

The list of docs/training.md is made from it: `python -m tests.torch.seen` prints it.
"""

import copy
import os
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from tests.torch.label_programs import PUBLIC
from tests.torch.setting import private as made_private
from tests.torch.test_labels import private


class Loop:
    """A run on 24 rows, made when it is asked for."""

    def __init__(self, module=None, **options):
        torch.manual_seed(0)
        self.module = nn.Linear(6, 4) if module is None else module
        rows = torch.randn(24, 6), torch.randint(0, 4, (24,)), torch.randn(24, 4)
        self.model, self.optimizer, self.loader = private(self.module, rows, 12, **options)

    def train(self, backward, between=lambda loop: None):
        for a, y, x in self.loader:
            self.optimizer.zero_grad()
            backward(self, a, y, x)
            self.optimizer.step()
            between(self)


def ce(loop, a, y, x):
    F.cross_entropy(loop.model(a), y).backward()


def loss(program, **options):
    """The loss as a function of (outputs, labels, numbers)."""
    return lambda: Loop(**options).train(lambda loop, a, y, x: program(loop.model(a), y, x).backward())


def body(backward, module=None, **options):
    return lambda: Loop(module and module(), **options).train(backward)


def after(change):
    """Something is changed after a step."""
    return lambda: Loop().train(ce, change)


def two(loop, a, y, x):
    ce(loop, a, y, x)
    ce(loop, a, y, x)


def accumulated():
    loop = Loop()
    for number, (a, y, x) in enumerate(loop.loader):
        ce(loop, a, y, x)
        if number % 2:
            loop.optimizer.step()


def repeated(loop, a, y, x):
    ce(loop, a, y, x)
    loop.optimizer.step()
    ce(loop, a, y, x)


def cleared(loop, a, y, x):
    ce(loop, a, y, x)
    loop.optimizer.zero_grad()


def by_hand(loop):
    with torch.no_grad():
        for p in loop.module.parameters():
            p.sub_(0.1 * p)


def second(loop, a, y, x):
    ce(loop, a, y, x)
    for p in loop.module.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(loop.module.parameters(), lr=0.1).step()


def scaled(loop, a, y, x):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(F.cross_entropy(loop.model(a), y)).backward()
    scaler.step(loop.optimizer)


def outside(loop, a, y, x):
    (loop.model(a) * nn.Parameter(torch.ones(()))).mean().backward()


def penalised(loop, a, y, x):
    term = sum(p.square().sum() for p in loop.module.parameters())
    (F.cross_entropy(loop.model(a), y) + 1e-3 * term).backward()


def generated(loop, a, y, x):
    loop.model(nn.Linear(3, 6)(torch.randn(len(a), 3))).mean().backward()
    loop.optimizer.zero_grad()
    ce(loop, a, y, x)


class Kept:
    centre = torch.zeros(4)

    def __call__(self, loop, a, y, x):
        (loop.model(a) - self.centre).square().mean().backward()
        self.centre = 0.9 * self.centre + 0.1 * x.mean(0)


class Counts(nn.Module):
    """A layer that keeps a mean of what it saw."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return self.a(x - self.seen)


class Two(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)

    def forward(self, x, scale):
        return super().forward(x * scale)


class Statistics(nn.Linear):
    def forward(self, x):
        return F.batch_norm(super().forward(x), None, None, training=True)


class OwnNorm(nn.BatchNorm1d):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(9)


def made(loader):
    """make_private with another loader."""

    def make():
        made_private(model=nn.Linear(6, 4), loader=loader(), noise_multiplier=1.0, max_grad_norm=1.0)

    return make


DATA = TensorDataset(torch.randn(24, 6), torch.randint(0, 4, (24,)))


def forked():
    loop = Loop()
    a, y, x = next(iter(loop.loader))
    ce(loop, a, y, x)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            loop.optimizer.step()
        except BaseException as error:  # sent to the parent
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    raise RuntimeError(os.read(reader, 4000).decode())


def threads():
    loop, failed = Loop(), []
    a, y, x = next(iter(loop.loader))
    ce(loop, a, y, x)

    def inside(optimizer):
        def again():
            try:
                loop.optimizer.step()
            except Exception as error:  # raised below
                failed.append(error)

        other = threading.Thread(target=again)
        other.start()
        other.join()

    loop.optimizer.attach_step_hook(inside)
    loop.optimizer.step()
    raise failed[0]


#: (group, mistake, what is done, what is said, what to write)
SEEN = [
    ("loss", "an output (B, 1) against a target (B,)", loss(lambda o, y, x: F.mse_loss(o[:, :1], y.float())),
     "rows meet rows on another axis", "`out.squeeze(1)`"),
    ("loss", "a mean over all tokens of the batch",
     loss(lambda o, y, x: (F.cross_entropy(o, y, reduction="none") * (y > 0)).sum() / (y > 0).sum()),
     "a product or quotient of two numbers of all rows, as of a mean over tokens",
     "`((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()`"),
    ("loss", "contrastive losses over the batch",
     loss(lambda o, y, x: F.cross_entropy(o @ o.T, torch.arange(len(o)))),
     "a product of rows with rows", "negatives from public data, or two views in one example"),
    ("loss", "pairs of rows by distances", loss(lambda o, y, x: torch.cdist(o, o).mean()),
     "distances between rows", "the same"),
    ("loss", "mixup in the loop", body(lambda loop, a, y, x: loop.model(0.8 * a + 0.2 * a.flip(0))),
     "does not have one row an example", "leave it out, or augment each example in the data set"),
    ("loss", "targets in another order", loss(lambda o, y, x: F.cross_entropy(o, y[torch.randperm(len(y))])),
     "rows are put in another order", "the row's own target"),
    ("loss", "centring by the batch", loss(lambda o, y, x: (o - o.mean(0)).square().mean()),
     "a number of all rows (a sum or a mean over them) meets single rows", "public constants, or LayerNorm"),
    ("loss", "the root or logarithm of a mean", loss(lambda o, y, x: F.mse_loss(o, x).sqrt()),
     "of a number of all rows, which is no sum over rows any more", "the row's root, then `.mean()`"),
    ("loss", "products and quotients of means", loss(lambda o, y, x: o.mean() * o.exp().mean()),
     "a product or quotient of two numbers of all rows", "the product of each row, then `.mean()`"),
    ("loss", "dice of the batch",
     loss(lambda o, y, x: 1 - (o.sigmoid() * (x > 0)).sum() / (o.sigmoid() + (x > 0)).sum()),
     ".flatten(1).sum(1)", "sums by row: `.flatten(1).sum(1)`"),
    ("loss", "rows picked by a mask", loss(lambda o, y, x: o[y > 0].mean()),
     "multiply by the mask, or torch.where", "`(losses * mask).mean()`"),
    ("loss", "a sum where a mean was said", loss(lambda o, y, x: o.square().sum()),
     "take .mean() over rows last", "`.mean()`, or `loss_reduction=\"sum\"`"),
    ("loss", "a mean where a sum was said", loss(lambda o, y, x: o.square().mean(), reduction="sum"),
     "take .sum() over rows last", "`.sum()`, or `loss_reduction=\"mean\"`"),
    ("loss", "a mean over rows twice", loss(lambda o, y, x: o.square().mean() / len(o)),
     "divided by the number of rows more than once", "one `.mean()`"),
    ("loss", "a penalty on weights", body(penalised), "weight_decay",
     "`weight_decay=2 * c` of the optimizer"),
    ("loss", "a trained temperature outside of the model", body(outside),
     "Make it a parameter of the module that make_private is given", "a parameter of the model"),
    ("loss", "means, centres or queues of earlier batches", body(Kept()),
     "numbers of an earlier batch", "leave it out: it has no noise"),
    ("loss", "`backward(gradient=…)`", body(lambda loop, a, y,
     x: loop.model(a).mean().backward(torch.ones(()))),
     "call it without", "`loss.backward()`"),
    ("loss", "`torch.autograd.backward(loss)`",
     body(lambda loop, a, y, x: torch.autograd.backward(F.cross_entropy(loop.model(a), y))),
     "write loss.backward()", "`loss.backward()`"),
    ("model", "batch normalisation", lambda: Loop(nn.Sequential(nn.Linear(6, 4),
     nn.BatchNorm1d(4))).train(ce),
     "PrivacyEngine.get_compatible_module(model)", "`model = PrivacyEngine.get_compatible_module(model)`"),
    ("model", "a subclass of it", lambda: Loop(nn.Sequential(nn.Linear(6, 4), OwnNorm(4))).train(ce),
     "no tool knows subclasses", "`nn.GroupNorm`, by hand"),
    ("model", "`F.batch_norm(…, training=True)`", lambda: Loop(Statistics(6, 4)).train(ce),
     "normalises by statistics of the batch", "GroupNorm or LayerNorm"),
    ("model", "running statistics of its own", lambda: Loop(Counts()).train(ce),
     "keeps something of its inputs", "`eval()` of that layer, or leave it out"),
    ("model", "a gradient penalty, FGSM or VAT in the loop",
     body(lambda loop, a, y, x: loop.model(a.requires_grad_())),
     "in the model's forward, by torch.autograd.grad", "the gradient in `forward`, as a second output"),
    ("model", "a part of the batch", body(lambda loop, a, y, x: loop.model(a[:3])), "one row an example",
     "the whole batch; `BatchMemoryManager` where it is too large"),
    ("model", "a tensor that all rows share, as an input",
     body(lambda loop, a, y, x: loop.model(a, torch.ones(6)), Two), "Expand what all rows share",
     "`.expand(len(x), …)`, or a buffer"),
    ("loop", "no `backward()`", body(lambda loop, a, y, x: loop.model(a)), "no gradient reached this step",
     "`loss.backward()` before `step()`"),
    ("loop", "two `backward()` of one batch", body(two), "call backward() on the sum",
     "`(one + two).backward()`"),
    ("loop", "a step after every k batches", accumulated, "accumulation",
     "`batch_size * k`, and a step after each"),
    ("loop", "a batch that is skipped", lambda: list(Loop().loader),
     "Call optimizer.step() for every batch", "a step for each batch"),
    ("loop", "two steps with one batch", body(repeated), "no batch", "one step a batch"),
    ("loop", "`zero_grad()` between `backward()` and `step()`", body(cleared),
     "no gradient reached this step",
     "`zero_grad()` before `backward()`"),
    ("loop", "weights changed by hand, or averaged", after(by_hand),
     "by something else than optimizer.step()",
     "average in a copy, or put the others back before the next batch"),
    ("loop", "`load_state_dict` after the first batch",
     after(lambda loop: loop.module.load_state_dict(nn.Linear(6, 4).state_dict())),
     "Load weights after make_private and before the first batch", "load before the first batch"),
    ("loop", "freezing or unfreezing", after(lambda loop: loop.module.bias.requires_grad_(False)),
     "a parameter group with lr 0", "a parameter group with lr 0"),
    ("loop", "a layer that joins the model", after(lambda loop: setattr(loop.module, "extra", nn.Linear(2,
     2))),
     "appeared in the model", "build the whole model first"),
    ("loop", "a second optimizer", body(second), "a second optimizer", "one with parameter groups"),
    ("loop", "another clip norm or noise", after(lambda loop: setattr(loop.optimizer, "max_grad_norm", 2.0)),
     "stays 1.0 for the whole run", "a run of its own"),
    ("loop", "`GradScaler()`", body(scaled), "GradScaler(enabled=False)",
     "bfloat16 and `GradScaler(enabled=False)`"),
    ("data", "`WeightedRandomSampler`",
     made(lambda: DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 24, 24))),
     "Use shuffle=True", "`shuffle=True`, and weights in the loss"),
    ("data", "an `IterableDataset`", made(lambda: DataLoader(Stream(), batch_size=3)),
     "DataLoader(list(dataset)",
     "[`RecordStream`](#my-data-cannot-be-indexed), or `DataLoader(list(dataset), …)`"
     " where it fits into memory"),
    ("process", "copies of a run", lambda: copy.deepcopy(Loop().optimizer), "cannot be copied or pickled",
     "`engine.save_checkpoint`"),
    ("process", "a fork", forked, "fork", "make_private in the process that trains"),
    ("process", "two threads", threads, "Step from one thread", "one thread"),
]  # fmt: skip

#: What runs, of which one might think that it does not.
RUNS = {
    "class weights": loss(lambda o, y, x: F.cross_entropy(o, y, weight=PUBLIC.exp())),
    "an ignored label": loss(lambda o, y, x: F.cross_entropy(o, y, ignore_index=0)),
    "a seed of the script": body(lambda loop, a, y, x: (torch.manual_seed(0), ce(loop, a, y, x))),
    "zero_grad everywhere": body(lambda loop, a, y, x: (loop.model.zero_grad(), ce(loop, a, y, x), None)[2]),
    "zero_grad between the model and backward": body(
        lambda loop, a, y, x: (lambda out: (loop.optimizer.zero_grad(), F.cross_entropy(out, y).backward()))(
            loop.model(a)
        )
    ),
    "a generator's step before that of the model": body(generated),
    "a copy of the model": body(
        lambda loop, a, y, x: (ce(loop, a, y, x), copy.deepcopy(loop.model)(a).sum().item())
    ),
}


#: Not in the list of the page: the message alone says all of it.
PLAIN = {
    "pairs of rows by distances", "products and quotients of means", "a mean over rows twice",
    "a sum where a mean was said", "a mean where a sum was said",
    "`backward(gradient=…)`", "`torch.autograd.backward(loss)`", "no `backward()`", "a batch that is skipped",
    "two steps with one batch", "`zero_grad()` between `backward()` and `step()`", "a subclass of it",
    "a layer that joins the model", "another clip norm or noise", "copies of a run", "a fork", "two threads",
}  # fmt: skip


def page():
    """The list in docs/training.md."""
    return "".join(f"- {mistake}: {write}\n" for _, mistake, _, _, write in SEEN if mistake not in PLAIN)


if __name__ == "__main__":
    print(page(), end="")
