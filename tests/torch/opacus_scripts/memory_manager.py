"""Large batches in parts, as in tutorials/building_image_classifier.ipynb."""

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(batch_size=24), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=1,
    max_grad_norm=1.0,
)  # fmt: skip
with BatchMemoryManager(
    data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
) as memory_safe_data_loader:
    for x, y in memory_safe_data_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
