"""A regression whose target lacks the axis of the output."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(48, 6)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for inputs, target in loader:
    optimizer.zero_grad()
    loss = criterion(model(inputs), target)
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
