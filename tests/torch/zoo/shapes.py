"""The shapes, by name."""

import torch
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn

from tests.torch.zoo import models
from tests.torch.zoo.shape import Shape


def features(*shape):
    return lambda rows: (torch.randn(rows, *shape),)


def tokens(length=6, words=11):
    return lambda rows: (torch.randint(0, words, (rows, length)),)


def images(channels=2, size=6):
    return features(channels, size, size)


def per_token(model, t):
    return model(t).flatten(1)[:, :3]


def mlp(*between):
    return lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), *(make() for make in between), nn.Linear(5, 3))


class DpAttending(models.Attending):
    def __init__(self):
        super().__init__()
        self.attention = DPMultiheadAttention(8, 2)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(0))


def repeated(rows):
    words = torch.randint(0, 10, (rows, 12))
    words[0] = 7
    return (words,)


def edges(rows):
    return torch.randn(rows, 5, 4), torch.randint(0, 5, (rows, 8, 2))


def pairs(rows):
    return torch.randn(rows, 6), torch.randn(rows, 6)


def masked(rows):
    mask = torch.zeros(rows, 6, dtype=torch.bool)
    mask[:, 4:] = torch.rand(rows, 2) < 0.5
    return torch.randint(0, 11, (rows, 6)), mask


def recurrent(layer, **options):
    return lambda: models.Recurrent(layer(4, 5, batch_first=True, **options))


SEQUENCE, WIDE = features(5, 4), features(5, 8)

SHAPES = {
    "mlp": Shape(mlp(), features(6)),
    "mlp, dropout": Shape(mlp(lambda: nn.Dropout(0.5)), features(6), random=True),
    "mlp, layer norm": Shape(mlp(lambda: nn.LayerNorm(5)), features(6)),
    "mlp, rms norm": Shape(mlp(lambda: nn.RMSNorm(5)), features(6)),
    "mlp, bf16 autocast": Shape(mlp(), features(6), autocast=torch.bfloat16),
    "sequence of vectors": Shape(mlp(), features(4, 6), call=lambda model, x: model(x).mean(1)),
    "regression": Shape(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)),
        features(6),
        targets=lambda rows: torch.randn(rows, 1),
        criterion=nn.MSELoss,
    ),
    "resnet": Shape(models.resnet, images(size=9)),
    "padding zeros": Shape(models.padded("zeros"), images()),
    "instance norm": Shape(models.instance_norm, images()),
    "conv1d": Shape(models.conv1d, features(2, 8)),
    "vit": Shape(lambda: models.Vit(0.0), images()),
    "gpt, tied": Shape(models.Gpt, tokens(), call=per_token),
    "gpt": Shape(lambda: models.Gpt(False, True), tokens(), call=per_token),
    "gpt, bf16 autocast": Shape(
        lambda: models.Gpt(False, True), tokens(), call=per_token, autocast=torch.bfloat16
    ),
    "encoder": Shape(models.Encoder, tokens()),
    "encoder, mask": Shape(models.Encoder, masked),
    "attention": Shape(models.Attending, WIDE),
    "attention, dp layer": Shape(DpAttending, WIDE),
    "lstm": Shape(recurrent(nn.LSTM), SEQUENCE),
    "lstm, two ways": Shape(models.long_memory, SEQUENCE),
    "lstm, dp layer": Shape(recurrent(DPLSTM), SEQUENCE),
    "gru, dp layer": Shape(recurrent(DPGRU), SEQUENCE),
    "graph": Shape(models.Graph, edges),
    "graph, flattened": Shape(models.Flattened, features(5, 4)),
    "bag, sum": Shape(lambda: models.Bag("sum"), repeated),
    "bag, mean": Shape(lambda: models.Bag("mean"), repeated),
    "padded embedding": Shape(
        lambda: nn.Sequential(nn.Embedding(11, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, 3)), tokens()
    ),
    "lora on frozen bf16": Shape(models.lora, tokens()),
    "gate": Shape(lambda: nn.Sequential(models.Gate(6), nn.Linear(6, 3)), features(6)),
    "gate above layers": Shape(models.GateAboveLayers, features(6)),
    "shared layer": Shape(models.Shared, features(6)),
    "drop path": Shape(models.DropPath, features(6), random=True),
    "keywords": Shape(models.Keywords, features(6), call=lambda model, x: model(features=x)["logits"]),
    "structured": Shape(models.Structured, features(6), call=lambda model, x: model({"x": x}).logits),
    "checkpoint": Shape(lambda: models.Checkpointed(False), features(6)),
    "checkpoint, reentrant": Shape(lambda: models.Checkpointed(True), features(6)),
    "hypernetwork": Shape(models.Hypernet, features(6)),
    "two inputs": Shape(models.Siamese, pairs),
    "time first": Shape(
        models.TimeFirst,
        features(5, 4),
        call=lambda model, x: model(x.transpose(0, 1))[0],
        options={"batch_first": False},
    ),
    "batch norm": Shape(models.batch_norm, images(), mixes=True),
}
