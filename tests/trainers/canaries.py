"""A run of canaries through a framework, as its own users see it, and what an audit of it says.

The gradient of an example is a direction of its own, longer than the clip norm, or zero: by a table in a
buffer of the model, so that every framework has batches of numbers to move about.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from anechoic.audit import audit
from anechoic.audit.observation import Observation
from anechoic.mechanism.calibrate import calibrate
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz
from anechoic.torch.noise_adder import NoiseAdder
from anechoic.torch.sources.clipping import Clipping
from anechoic.trainers import Privacy
from tests.trainers.setting import KEYS, as_in_another_process

CANARIES, BATCH, STEPS = 96, 24, 12
PASS = CANARIES // BATCH
MECHANISM = calibrate(
    BandedToeplitz(STEPS, (1.0, 0.6, 0.4, 0.3)),
    sampling=FixedOrder(CANARIES, BATCH, steps=STEPS),
    noise_multiplier=1 / 3,
    delta=1e-5,
)


@cache
def drawn():
    """(directions, which canaries are put in)."""
    rng = np.random.default_rng(7)
    directions = np.linalg.qr(rng.standard_normal((CANARIES, CANARIES)))[0]
    return directions, rng.permutation(CANARIES) % 2 == 0


class Numbers(Dataset):
    """Example i is its number, with 1 to 5 tokens."""

    def __len__(self):
        return CANARIES

    def __getitem__(self, i):
        return {"input_ids": torch.tensor([i]), "labels": torch.tensor([1 + i % 5])}


class Canaries(nn.Module):
    """Its loss is a mean over rows; `frozen` is not trained."""

    def __init__(self):
        super().__init__()
        directions, put_in = drawn()
        table = 2.0 * MECHANISM.clip_norm * directions * put_in[:, None]
        self.weight = nn.Parameter(torch.zeros(CANARIES))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("table", torch.from_numpy(table.astype(np.float32)))

    def forward(self, input_ids, labels=None):
        scores = self.table[input_ids[:, 0]] @ self.weight
        return {"loss": scores.mean(), "logits": scores[:, None, None].expand(-1, 1, 2)}


def token_mean(model, batch):
    """Divides by what all rows of the batch have together."""
    tokens = batch["labels"].sum()
    return model(**batch)["logits"][:, 0, 0].sum() * BATCH * 9.0 / tokens


def privacy():
    return Privacy(**KEYS, mechanism=MECHANISM)


class Watched:
    """A model and its plain optimizer, of which every update is kept."""

    def __init__(self, model):
        as_in_another_process()
        self.model, self.rows = model, []
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.optimizer.register_step_post_hook(lambda *_: self.rows.append(self.weight.grad.detach().clone()))

    @property
    def weight(self):
        return next(p for p in self.model.parameters() if p.requires_grad)

    def releases(self):
        """What was released, shape (n, m), as means. Nothing else has moved the weights."""
        rows = torch.stack(self.rows)
        torch.testing.assert_close(-rows.double().sum(0), self.weight.detach().double(), atol=1e-4, rtol=1e-4)
        return rows


def audited(watched, batches):
    """What an audit says of a run, and what is to be seen of the arithmetic.

    Args:
        watched: after the run.
        batches: of the run, as it has drawn them.
    """
    directions, put_in = drawn()
    released = watched.releases()
    # noise has all the digits of its numbers; in half precision there are 8 bits of them
    coarse = float((released.bfloat16().float() == released).double().mean())
    assert coarse < 0.1, f"{coarse:.0%} of what was released is in half precision"
    rows = released.double().numpy() * (MECHANISM.expected_batch_size / MECHANISM.clip_norm) @ directions.T
    inside = np.zeros((STEPS, CANARIES), bool)
    for t in range(STEPS):
        inside[t, batches.batch(t)] = True
    return audit(MECHANISM, Observation(rows, inside, put_in.astype(float)))


def counted_twice(monkeypatch):
    """Fault of the library: every contribution is added up twice."""
    add = Clipping.add

    def twice(self, *given):
        add(self, *given)
        add(self, *given)

    monkeypatch.setattr(Clipping, "add", twice)


def noise_in_half(monkeypatch):
    """Fault of the library: what is released has been in bfloat16."""
    make = NoiseAdder.noisy_gradients
    monkeypatch.setattr(
        NoiseAdder, "noisy_gradients", lambda self, *given: [r.bfloat16().float() for r in make(self, *given)]
    )


def sees(fault, train):
    """Whether an audit of `train()`, (the watched run, its batches), finds what `fault` does."""
    if fault is counted_twice:
        return audited(*train()).violated
    with pytest.raises(AssertionError, match="half precision"):
        audited(*train())
    return True
