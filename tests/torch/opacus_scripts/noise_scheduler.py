"""Less noise in every epoch, by opacus.schedulers."""

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.5, max_grad_norm=1.0
)
noise_scheduler = ExponentialNoise(optimizer, gamma=0.9)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    noise_scheduler.step()
epsilon = privacy_engine.get_epsilon(1e-3)
