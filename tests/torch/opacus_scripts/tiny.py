"""Data for the scripts of this folder, in the shapes of those of Opacus's examples, and small."""

import torch
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, CLASSES = 30, 6, 3


def labels(x):
    return (x.float().flatten(1).sum(1).abs() * 7).long() % CLASSES


def images(rows=48, *, batch_size=16, size=8, channels=1, **options):
    torch.manual_seed(0)
    x = torch.randn(rows, channels, size, size)
    return DataLoader(TensorDataset(x, labels(x)), batch_size=batch_size, **options)


def table(rows=48, *, batch_size=16, **options):
    torch.manual_seed(0)
    x = torch.randn(rows, 6)
    return DataLoader(TensorDataset(x, labels(x)), batch_size=batch_size, **options)


def texts(rows=48, *, batch_size=16, **options):
    torch.manual_seed(0)
    x = torch.randint(1, WORDS, (rows, LENGTH))
    return DataLoader(TensorDataset(x, labels(x)), batch_size=batch_size, **options)
