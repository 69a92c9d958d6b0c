"""DPLSTM over characters of names, as in examples/char-lstm-classification.py."""

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn, optim

from tests.torch.opacus_scripts.tiny import WORDS, texts


class CharNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.lstm = DPLSTM(6, 8, num_layers=1, bidirectional=False, batch_first=True)
        self.out_layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.out_layer(self.lstm(self.embedding(x))[0][:, -1])


loader = texts(shuffle=True)
model = CharNN()
optimizer = optim.SGD(model.parameters(), lr=0.5)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=2,
    max_grad_norm=1.5,
)  # fmt: skip
criterion = nn.CrossEntropyLoss(reduction="mean")
for _ in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
with torch.no_grad():
    accuracy = (model(loader.dataset[0][0][None]).argmax(1) == loader.dataset[0][1]).float()
epsilon = privacy_engine.get_epsilon(1e-3)
