"""Snapshots of what layers hold: every change inside of settings is seen, and nothing else is one."""

import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError
from anechoic.torch.sources import single_rows
from anechoic.torch.watching import attributes
from anechoic.torch.watching.attributes import AttributeSnapshot
from tests.marks import in_turn
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


class Scaled(nn.Linear):
    scale, table = 1.0, [0]


class Typed:
    mix, table = 0, [0]


class Held:
    pass


def layer():
    made = Scaled(2, 2)
    Typed.mix, Typed.table = 0, [0]
    Call.scale, Scaled.scale, Scaled.table = 1.0, 1.0, [0]
    made.long, made.last = [0] * 900, deque([0] * 300)
    made.bytes, made.words = bytearray(500), array("l", [0] * 400)
    made.keyed, made.proxy = {(1, 2): 0, **dict.fromkeys(range(200), 0)}, MappingProxyType({"a": [0]})
    made.closed = lambda: None
    made.closed.kept = [0]
    made.many, made.kind, made.typed = set(range(300)), Held, Typed()
    made.plain, made.data, made.slotted, made.call = Plain(), Data(), Slotted(), Call()
    made.tensor, made.large, made.array = torch.zeros(3), torch.zeros(1000), np.zeros(3)
    made.options, made.calls, made.seen = {"mix": 0, 3: {"a": 1}}, [0], {1, 2}
    made.function, made.nothing = len, None
    made.scalar, made.decimal = np.int64(0), Decimal(0)
    shared = Plain()
    made.far, made.near = [[[[[shared]]]]], shared  # met five levels down first
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
    "end of a long list": lambda m: m.long.__setitem__(-1, 1),
    "end of a deque": lambda m: m.last.__setitem__(-1, 1),
    "end of a bytearray": lambda m: m.bytes.__setitem__(-1, 1),
    "end of an array": lambda m: m.words.__setitem__(-1, 1),
    "tuple for a key": lambda m: m.keyed.__setitem__((1, 2), 1),
    "key replaced": lambda m: m.keyed.__setitem__((1, 3), m.keyed.pop((1, 2))),
    "mapping": lambda m: m.proxy["a"].append(1),
    "large set": lambda m: (m.many.remove(7), m.many.add(-7)),
    "class held": lambda m: setattr(m.kind, "mix", m),
    "class of what is held": lambda m: setattr(Typed, "mix", 1),
    "list of the class of what is held": lambda m: Typed.table.append(1),
    "attribute of a function": lambda m: m.closed.kept.append(1),
    "class of the layer": lambda m: setattr(Scaled, "scale", 2.0),
    "list of the class of the layer": lambda m: Scaled.table.append(1),
    "function": lambda m: setattr(m, "function", abs),
    "None": lambda m: setattr(m, "nothing", 0.5),
    "NumPy scalar": lambda m: setattr(m, "scalar", np.int64(1)),
    "decimal": lambda m: setattr(m, "decimal", Decimal(1)),
    "far and near": lambda m: setattr(m.near, "mix", 1),
    "gone": lambda m: delattr(m, "calls"),
    "training": lambda m: m.eval(),
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
    "part": lambda m: m.add_module("part", nn.ReLU()),
    "class": lambda m: setattr(m, "__class__", type("Other", (Scaled,), {})),
}


@in_turn("change", CHANGES)
def test_every_change_is_seen_and_only_that(change):
    made, one, other = layer(), AttributeSnapshot(), AttributeSnapshot()
    before = one.layer(made)
    assert other.layer(made) == before
    CHANGES[change](made)
    after = AttributeSnapshot().layer(made)
    assert sum(before.get(name, "-") != after.get(name, "-") for name in before.keys() | after.keys()) == 1


def test_the_work_is_bounded():
    made = nn.Linear(2, 2)
    made.vocabulary = {f"word {i}": [i] for i in range(10**5)}
    made.numbers = [list(range(1000)) for _ in range(100)]
    made.tree = [[[list(range(100))] * 100] * 100 for _ in range(100)]
    made.mix = 0
    start = time.process_time()
    before = AttributeSnapshot().layer(made)
    assert time.process_time() - start < 0.05
    made.mix = 1
    assert AttributeSnapshot().layer(made)["mix"] != before["mix"]
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
