"""Epsilon from the accountant, as in examples/dcgan.py, here for a classifier."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import images

loader = images(drop_last=True)
model = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 4, 1, 0), nn.Flatten())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
criterion = nn.BCEWithLogitsLoss()
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    criterion(model(x).squeeze(1), (y > 0).float()).backward()
    optimizer.step()
    epsilon = privacy_engine.accountant.get_epsilon(delta=1e-3)
assert len(privacy_engine.accountant) > 0  # steps here, entries of its history in Opacus
