"""A number of epochs that only the loop knows, with a stop at a budget."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(shuffle=True), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.2, max_grad_norm=1.0
)
epsilon, steps = 0.0, 0
while epsilon < 3.5:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
    epsilon = privacy_engine.get_epsilon(1e-3)
assert steps >= 3
