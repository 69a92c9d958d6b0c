"""A contrastive loss: the other rows of the batch are the negatives."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(*torch.randn(2, 48, 6)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for a, b in loader:
    optimizer.zero_grad()
    za, zb = F.normalize(model(a), dim=1), F.normalize(model(b), dim=1)
    loss = F.cross_entropy(za @ zb.T / 0.1, torch.arange(len(a)))
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
