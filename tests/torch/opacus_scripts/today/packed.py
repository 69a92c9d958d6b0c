"""Texts of different lengths, padded by the batch and packed for an LSTM, with an augmenting data set."""

import random

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

from tests.torch.opacus_scripts.tiny import WORDS, texts


class Names(Dataset):
    def __init__(self):
        self.rows = [(x[: 2 + i % 5], y) for i, (x, y) in enumerate(texts().dataset)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x, y = self.rows[i]
        return (x.flip(0) if random.random() < 0.5 else x), y


def collate(batch):
    xs, ys = zip(*batch, strict=True)
    return pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.stack(ys)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, 8), DPLSTM(8, 8, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.fc(h[-1])


loader = DataLoader(Names(), batch_size=16, shuffle=True, collate_fn=collate)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, lengths, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, lengths), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
