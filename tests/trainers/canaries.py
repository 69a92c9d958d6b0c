"""A run through a framework, as its own users see it, in which each example has a direction of its own."""

import torch
from torch import nn
from torch.utils.data import Dataset

from anechoic.mechanism.calibrate import calibrate
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz
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
        self.weight = nn.Parameter(torch.zeros(CANARIES))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("table", 2.0 * MECHANISM.clip_norm * torch.eye(CANARIES))

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
