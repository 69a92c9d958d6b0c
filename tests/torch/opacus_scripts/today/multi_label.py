"""Many labels an example, each with the weight of its positives."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(48, 6)
loader = DataLoader(TensorDataset(x, (x[:, :4] > 0.5).float()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 2.0, 3.0, 3.0]))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for inputs, targets in loader:
    model.zero_grad()
    logits = model(inputs)
    loss = criterion(logits, targets)
    loss.backward()
    optimizer.step()
    f1 = ((logits.sigmoid() > 0.5).float() * targets).sum().item()
epsilon = privacy_engine.get_epsilon(1e-3)
