"""Model and data: images of clothes, split over clients that each have few kinds."""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import torch

CLASSES = 10


class Net(torch.nn.Module):
    """A small convolutional network: 26,010 parameters, no layer that mixes examples."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 8, stride=2, padding=3),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2, stride=1),
            torch.nn.Conv2d(16, 32, 4, stride=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2, stride=1),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 4 * 4, 32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, CLASSES),
        )

    def forward(self, images):
        return self.layers(images)


def initial_model(seed):
    """The model that the server begins with."""
    torch.manual_seed(seed)
    return Net()


@cache
def images(directory, seed):
    """((train images, labels), (test images, labels)), images float32 of shape (n, 1, 28, 28)."""
    if directory:
        return _pair(directory, "train"), _pair(directory, "t10k")
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(CLASSES, 1, 28, 28)).astype(np.float32)

    def drawn(count):
        labels = rng.integers(0, CLASSES, count)
        noise = rng.normal(size=(count, 1, 28, 28)).astype(np.float32)
        return 0.3 * kinds[labels] + noise, labels

    return drawn(6_000), drawn(1_000)


@cache
def shares(directory, seed, clients, concentration):
    """For each client the places of its examples: shares of each label are Dirichlet distributed."""
    labels = images(directory, seed)[0][1]
    rng = np.random.default_rng(seed + 1)
    order = rng.permutation(len(labels))
    wanted = rng.dirichlet(np.full(CLASSES, concentration), size=clients)
    taken = [[] for _ in range(clients)]
    for label in range(CLASSES):
        places = order[labels[order] == label]
        ends = np.cumsum(wanted[:, label] / wanted[:, label].sum() * len(places)).astype(int)
        for client, part in enumerate(np.split(places, ends[:-1])):
            taken[client].extend(part.tolist())
    return taken


def client_data(config, partition, partitions):
    """(images, labels) of one client."""
    directory, seed = config["data-dir"], config["seed"]
    (x, y), _ = images(directory, seed)
    mine = shares(directory, seed, partitions, config["dirichlet"])[partition]
    return torch.from_numpy(x[mine]), torch.from_numpy(y[mine].astype(np.int64))


def accuracy(model, config):
    """Of a model on test images that belong to no client."""
    _, (x, y) = images(config["data-dir"], config["seed"])
    model.eval()
    with torch.no_grad():
        guesses = model(torch.from_numpy(x)).argmax(1).numpy()
    return float((guesses == y).mean())


def _pair(directory, part):
    """Scaled images and labels of two of the four files: bytes after a head of four each axis, and four."""
    images, labels = (
        np.frombuffer(gzip.decompress(Path(directory, f"{part}-{kind}-ubyte.gz").read_bytes()), np.uint8)
        for kind in ("images-idx3", "labels-idx1")
    )
    pixels = images[16:].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return (pixels - 0.2860) / 0.3530, labels[8:]
