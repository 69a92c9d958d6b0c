"""Triplets inside of a row: anchor, positive and negative are one example."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(*torch.randn(3, 48, 6)), batch_size=16, shuffle=True)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, *inputs):
        return tuple(nn.functional.normalize(self.encoder(x), dim=1) for x in inputs)


model, criterion = Siamese(), nn.TripletMarginLoss(margin=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for anchor, positive, negative in loader:
    optimizer.zero_grad()
    loss = criterion(*model(anchor, positive, negative))
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
