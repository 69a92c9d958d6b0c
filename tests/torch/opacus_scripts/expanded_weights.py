"""Gradients of single rows by torch's expanded weights."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
    grad_sample_mode="ew", poisson_sampling=False, loss_reduction="sum",
)  # fmt: skip
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
