"""A residual network whose batch norm ModuleValidator replaces, with RMSprop, as in examples/cifar10.py."""

from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn, optim

from tests.torch.opacus_scripts.tiny import images


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        return x + self.relu(self.bn(self.conv(x)))


loader = images(channels=3)
model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
errors = ModuleValidator.validate(model, strict=False)
model = ModuleValidator.fix(model)
ModuleValidator.validate(model, strict=True)
optimizer = optim.RMSprop(model.parameters(), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, epochs=1, target_epsilon=50.0, target_delta=1e-3,
    max_grad_norm=1.2,
)  # fmt: skip
sigma = optimizer.noise_multiplier
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
