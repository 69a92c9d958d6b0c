"""A small language model, sentences of unequal lengths, and a private run of it by a bare loop."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from anechoic.runs import ledger
from anechoic.torch import PrivacyEngine

WORDS, LENGTH, ROWS = 30, 12, 64
KEYS = {"noise_key": bytes(range(32)), "sampling_key": bytes(range(1, 33))}


class Sentences(Dataset):
    """Sentences of 4 to 12 words, padded to 12; `changed` says what replaces some of them.

    Args:
        rows: how many.
        changed: by number, the seed of the sentence that stands in its place, and its length.
    """

    def __init__(self, rows=ROWS, changed=()):
        self.rows, self.changed = rows, dict(changed)

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        seed, length = self.changed.get(i, (i, 4 + i % 9))
        drawn = torch.Generator().manual_seed(seed)
        words = torch.randint(1, WORDS, (LENGTH,), generator=drawn)
        mask = (torch.arange(LENGTH) < length).long()
        return {
            "input_ids": words * mask,
            "attention_mask": mask,
            "labels": words.masked_fill(mask == 0, -100),
        }


class Words(nn.Module):
    """A model with its loss inside, as those of transformers have it: a mean over the tokens it is given."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.words(input_ids).tanh())
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


def words():
    torch.manual_seed(3)
    return Words()


def as_in_another_process():
    """Forget what this process released: tests make one run several times under one key."""
    ledger._MADE.clear()


def flat(model):
    """All weights of a model, trained or not."""
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def bare(model, optimizer, *, batch, epochs, rates=None, dataset=None, **options):
    """The run by a loop that everybody writes. `rates` are over that of the optimizer."""
    as_in_another_process()
    engine = PrivacyEngine(**KEYS)
    steps = epochs * -(-ROWS // batch)
    net, private, loader = engine.make_private_with_epsilon(
        module=model.train(),
        optimizer=optimizer,
        data_loader=DataLoader(dataset or Sentences(), batch_size=batch, shuffle=True),
        target_epsilon=8.0,
        target_delta=1e-3,
        max_grad_norm=1.0,
        steps=steps,
        scheduler=rates,
        **options,
    )
    first = [group["lr"] for group in optimizer.param_groups]
    for _ in range(epochs):
        for rows in loader:
            if rates is not None:
                for group, rate in zip(optimizer.param_groups, first, strict=True):
                    group["lr"] = rate * rates[engine.releases]
            private.zero_grad()
            net(**rows)["loss"].backward()
            private.step()
    return SimpleNamespace(engine=engine, model=model)
