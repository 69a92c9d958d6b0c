"""Snapshots of what layers hold: every change inside of settings is seen, and nothing else is one."""

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError
from anechoic.torch.sources import single_rows
from anechoic.torch.watching import attributes
from anechoic.torch.watching.attributes import Snapshot
from tests.torch.setting import FEATURES, start, step


class Plain:
    def __init__(self):
        self.mix, self.inner = 0, {"deep": [1, (2, 3)]}
        self.itself = self


@dataclass
class Data:
    mix: int = 0
    names: list = field(default_factory=lambda: ["a"])


class Slotted:
    __slots__ = ("mix",)

    def __init__(self):
        self.mix = 0


class Call:
    scale = 1.0

    def __call__(self, x):
        return x * self.scale


def layer():
    made = nn.Linear(2, 2)
    made.plain, made.data, made.slotted, made.call = Plain(), Data(), Slotted(), Call()
    made.tensor, made.large, made.array = torch.zeros(3), torch.zeros(1000), np.zeros(3)
    made.options, made.calls, made.seen = {"mix": 0, 3: {"a": 1}}, [0], {1, 2}
    made.function, made.nothing = len, None
    return made


CHANGES = {
    "plain": lambda m: setattr(m.plain, "mix", 1),
    "new attribute": lambda m: setattr(m.plain, "more", 1),
    "deep": lambda m: m.plain.inner["deep"].append(1),
    "object replaced": lambda m: setattr(m, "plain", type("C", (), {"mix": 0})()),
    "dataclass": lambda m: setattr(m.data, "mix", 1),
    "list in a dataclass": lambda m: m.data.names.append("b"),
    "slots": lambda m: setattr(m.slotted, "mix", 1),
    "callable": lambda m: setattr(m.call, "scale", 2.0),
    "small tensor": lambda m: m.tensor.add_(1),
    "large tensor": lambda m: m.large.add_(1),
    "large tensor replaced": lambda m: setattr(m, "large", torch.zeros(1000)),
    "array": lambda m: m.array.__setitem__(0, 1.0),
    "dict": lambda m: m.options.update(mix=1),
    "dict in a dict": lambda m: m.options[3].update(a=2),
    "list": lambda m: m.calls.__setitem__(0, 1),
    "set": lambda m: m.seen.add(3),
    "function": lambda m: setattr(m, "function", abs),
    "None": lambda m: setattr(m, "nothing", 0.5),
    "gone": lambda m: delattr(m, "calls"),
    "training": lambda m: m.eval(),
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
    "part": lambda m: m.add_module("part", nn.ReLU()),
    "class": lambda m: setattr(m, "__class__", type("Other", (nn.Linear,), {})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_and_only_that(change):
    made, one, other = layer(), Snapshot(), Snapshot()
    before = one.layer(made)
    assert other.layer(made) == before
    CHANGES[change](made)
    after = Snapshot().layer(made)
    assert sum(before.get(name, "-") != after.get(name, "-") for name in before.keys() | after.keys()) == 1


def test_the_work_is_bounded():
    made = nn.Linear(2, 2)
    made.vocabulary = {f"word {i}": [i] for i in range(10**5)}
    made.tree = [[[list(range(100))] * 100] * 100 for _ in range(100)]
    made.mix = 0
    start = time.process_time()
    before = Snapshot().layer(made)
    assert time.process_time() - start < 0.05
    made.mix = 1
    assert Snapshot().layer(made)["mix"] != before["mix"]
    assert attributes.VALUES < 10**4


class Config:
    mix = 0


class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cfg = Config()
        self.body, self.head = nn.Linear(FEATURES, 5), nn.Linear(5, 2)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.head(hidden * torch.sign(x.detach().sum()) - 3 * x.mean() if self.cfg.mix else hidden)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_model_that_begins_to_mix_rows_by_its_configuration_is_refused(mode, monkeypatch):
    monkeypatch.setattr(single_rows, "RATE", 0.0)
    run = start(mode, model=Scheduled())
    batches = iter(run.loader)
    step(run, next(batches))
    run.model.cfg.mix = 1
    with pytest.raises(GuaranteeError, match="does not give what it gave in the batch"):
        step(run, next(batches))
    assert run.engine.releases == 1
