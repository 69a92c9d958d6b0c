"""Two physical batches for one step, by signals to the optimizer."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=1,
    max_grad_norm=1.0, poisson_sampling=False,
)  # fmt: skip
parts = loader
for i, (x, y) in enumerate(parts):
    optimizer.signal_skip_step(do_skip=i % 2 == 0)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
epsilon = privacy_engine.get_epsilon(1e-3)
