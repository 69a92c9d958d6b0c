"""Save in the middle, and go on from there with a new engine, as in the engine's documentation."""

import tempfile
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

path = Path(tempfile.mkdtemp()) / "checkpoint.pt"


def private():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine = PrivacyEngine()
    return engine, engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=table(), target_epsilon=8.0, target_delta=1e-3,
        epochs=2, max_grad_norm=1.0,
    )  # fmt: skip


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


privacy_engine, (model, optimizer, loader) = private()
train(model, optimizer, loader)
privacy_engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
half = privacy_engine.get_epsilon(1e-3)
privacy_engine, (model, optimizer, loader) = private()
privacy_engine.load_checkpoint(path=path, module=model, optimizer=optimizer)
assert abs(privacy_engine.get_epsilon(1e-3) - half) < 1e-6
train(model, optimizer, loader)
epsilon = privacy_engine.get_epsilon(1e-3)
