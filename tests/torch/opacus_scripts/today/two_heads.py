"""Two tasks on one trunk: the sum of two means."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from tests.torch.opacus_scripts.tiny import table

rows = [{"x": x, "kind": y, "value": x.sum(), "id": f"row-{i}"} for i, (x, y) in enumerate(table().dataset)]
loader = DataLoader(rows, batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.kind, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = self.trunk(x)
        return {"kind": self.kind(h), "value": self.value(h).squeeze(-1)}


model = Net()
optimizer = torch.optim.Adam(
    [{"params": model.trunk.parameters(), "lr": 1e-3},
     {"params": [*model.kind.parameters(), *model.value.parameters()]}], lr=1e-2,
)  # fmt: skip
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for batch in loader:
    optimizer.zero_grad()
    out = model(batch["x"])
    kind = nn.functional.cross_entropy(out["kind"], batch["kind"])
    value = nn.functional.smooth_l1_loss(out["value"], batch["value"])
    loss = kind + 0.5 * value
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
