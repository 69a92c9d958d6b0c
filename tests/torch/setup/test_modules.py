"""What make_private says of layers and tensors that the model holds without having registered them."""

import logging
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anechoic.torch.setup.checks import report_unregistered


def told(caplog, held):
    """The attributes that are named for a model whose second layer holds this."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].held = held
    caplog.clear()
    with caplog.at_level(logging.WARNING, "anechoic"):
        report_unregistered(model)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 1
    return lines[0].split("not registered: ")[1].split(". Nobody trains")[0] if lines else None


TRAINED = {
    "list": lambda: [nn.Linear(2, 2)],
    "end of a list": lambda: [0] * 900 + [nn.Linear(2, 2)],
    "dict": lambda: {"a": (1, [nn.Linear(2, 2)])},
    "deque": lambda: deque([nn.Parameter(torch.zeros(2))]),
    "set": lambda: {nn.Parameter(torch.zeros(2))},
    "object": lambda: SimpleNamespace(head=nn.Linear(2, 2)),
    "tensor": lambda: torch.zeros(3, requires_grad=True),
}
NOT_TRAINED = {
    "frozen": lambda: [nn.Linear(2, 2).requires_grad_(False)],
    "without parameters": lambda: [nn.ReLU()],
    "data": lambda: torch.zeros(3),
    "computed": lambda: torch.zeros(3, requires_grad=True) * 2,
    "more than is looked at": lambda: [[0.5 + i, [i]] for i in range(10**5)],
    "words": lambda: ["a", b"b", None, 1, nn.Linear, len],
}


@pytest.mark.parametrize("kind", TRAINED)
def test_what_could_be_trained_elsewhere_is_named(caplog, kind):
    assert told(caplog, TRAINED[kind]()) == "1.held"


@pytest.mark.parametrize("kind", NOT_TRAINED)
def test_what_could_not_is_not_named(caplog, kind):
    assert told(caplog, NOT_TRAINED[kind]()) is None


def test_what_is_registered_is_not_named(caplog):
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))
    model.again = [model[0], model[1].weight_ih_l0]
    model.itself = SimpleNamespace(model=model)
    report_unregistered(model)
    assert not caplog.records
