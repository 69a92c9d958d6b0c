"""Word embeddings, padded batches and Adam, as in examples/imdb.py."""

import torch
from opacus import PrivacyEngine
from torch import nn, optim
from torch.utils.data import DataLoader

from tests.torch.opacus_scripts.tiny import WORDS, texts


class SampleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pool = nn.Embedding(WORDS, 8), nn.AdaptiveAvgPool1d(1)
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.pool(self.emb(x).transpose(1, 2)).squeeze(2)
        return self.fc2(torch.relu(self.fc1(x)))


def collate(batch):
    x = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True, padding_value=0)
    return x, torch.stack([y for _, y in batch])


loader = DataLoader(texts().dataset, batch_size=16, collate_fn=collate)
model = SampleNet().train()
optimizer = optim.Adam(model.parameters(), lr=0.02)
privacy_engine = PrivacyEngine(secure_mode=False)
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.6, max_grad_norm=0.1
)
criterion, losses = nn.CrossEntropyLoss(), []
for data, label in loader:
    optimizer.zero_grad()
    loss = criterion(model(data).squeeze(1), label)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
epsilon = privacy_engine.get_epsilon(1e-3)
