"""A small CNN with an epsilon for every epoch, as in examples/mnist.py."""

import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn, optim

from tests.torch.opacus_scripts.tiny import images

loader = images(shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0)
privacy_engine = PrivacyEngine(secure_mode=False)
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(2):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
    epsilon = privacy_engine.get_epsilon(delta=1e-3)
