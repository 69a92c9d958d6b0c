"""A schedule of the learning rate on the private optimizer."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    scheduler.step()
assert abs(optimizer.param_groups[0]["lr"] - 0.1) < 1e-9
epsilon = privacy_engine.get_epsilon(1e-3)
