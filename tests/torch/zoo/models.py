"""Models of the zoo: small, written by hand, each with something that a rule for single layers may miss."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def long_memory():
    layer = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
    return nn.Sequential(layer, Last(), nn.Linear(10, 3))


class Residual(nn.Module):
    def __init__(self, channels, norm):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


def resnet():
    group = lambda c: nn.GroupNorm(2, c)  # noqa: E731
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2),
        Residual(4, group),
        Residual(4, group),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def padded(mode):
    return lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode=mode), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    )


def instance_norm():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def batch_norm():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))


def conv1d():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding="same", dilation=2),
        nn.PReLU(4),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class Vit(nn.Module):
    """Patches, class token, positions of its own, dropout below a module with parameters."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 3, stride=3)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.drop = nn.Dropout(dropout)
        self.block = Block(8, 2, dropout)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.positions
        return self.head(self.block(self.drop(h))[:, 0])


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        h = self.qkv(self.first(x)).reshape(len(x), x.shape[1], 3, self.heads, -1)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(h.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    """Embedding tied to the head; positions without a batch dimension."""

    def __init__(self, tied=True, parameter_positions=False):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.parameter_positions = parameter_positions
        self.positions = nn.Embedding(6, 8)
        self.block = Block(8, 2, causal=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, t):
        places = torch.arange(t.shape[1])
        h = self.tokens(t) + (
            self.positions(places.expand(len(t), -1)) if self.parameter_positions else self.positions(places)
        )
        return self.head(self.norm(self.block(h)))


class Encoder(nn.Module):
    """torch's own encoder, with dropout or without."""

    def __init__(self, dropout=0.0, norm_first=False):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, t, mask=None):
        return self.head(self.encoder(self.tokens(t), src_key_padding_mask=mask).mean(1))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def forward(self, given):
        return given[0][:, -1]


class TimeFirst(nn.Module):
    """The batch is the second dimension of what it is fed with, and the first one of what it returns."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)).mean(0, keepdim=True))


class Graph(nn.Module):
    """Messages along the edges of each example's graph, by scatter."""

    def __init__(self):
        super().__init__()
        self.message, self.update, self.head = nn.Linear(4, 6), nn.Linear(10, 6), nn.Linear(6, 3)

    def forward(self, nodes, edges):
        source, target = edges.unbind(-1)
        sent = torch.tanh(self.message(nodes)).gather(1, source[..., None].expand(-1, -1, 6))
        got = nodes.new_zeros(*nodes.shape[:2], 6).scatter_add(1, target[..., None].expand(-1, -1, 6), sent)
        return self.head(torch.relu(self.update(torch.cat([nodes, got], -1))).mean(1))


class Flattened(nn.Module):
    """Rows and nodes in one axis, as libraries for graphs have it, summed per example by index_add."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, nodes):
        owner = torch.arange(len(nodes)).repeat_interleave(nodes.shape[1])
        h = torch.tanh(self.layer(nodes.reshape(-1, 4)))
        return self.head(h.new_zeros(len(nodes), 6).index_add(0, owner, h))


class Bag(nn.Module):
    def __init__(self, mode, offsets=True):
        super().__init__()
        self.bag, self.head, self.offsets = nn.EmbeddingBag(10, 4, mode=mode), nn.Linear(4, 3), offsets

    def forward(self, t):
        if not self.offsets:
            return self.head(self.bag(t))
        return self.head(self.bag(t.reshape(-1), torch.arange(0, t.numel(), t.shape[1])))


class Lora(nn.Module):
    """A trainable update of low rank beside a frozen bfloat16 weight."""

    def __init__(self, size):
        super().__init__()
        self.base = nn.Linear(size, size).to(torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(size, 2, bias=False), nn.Linear(2, size, bias=False)

    def forward(self, x):
        return self.base(x.to(torch.bfloat16)).to(x.dtype) + self.up(self.down(x))


def lora():
    model = nn.Sequential(nn.Embedding(11, 8), Lora(8), nn.Tanh(), Lora(8), nn.Flatten(), nn.Linear(48, 3))
    model[0].requires_grad_(False)
    return model


class Gate(nn.Module):
    """Parameters of its own, and an attribute that the loop may change."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.tau = nn.Parameter(torch.full((size,), 0.3)), 1.0

    def forward(self, x):
        return x * self.weight / self.tau


class GateAboveLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.layer, self.head = nn.Parameter(torch.zeros(6)), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x * self.gate.exp() + torch.tanh(self.layer(x)))


class Shared(nn.Module):
    """One layer called twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class DropPath(nn.Module):
    """Leaves out a layer for some examples (stochastic depth)."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        kept = torch.rand(len(x), 1) < 0.5
        return self.head(x + torch.tanh(self.layer(x)) * kept)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, *, features, scale=1.0):
        return {"logits": self.head(input=torch.tanh(self.layer(input=features)) * scale), "scale": scale}


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, batch):
        h = torch.tanh(self.layer(batch["x"]))
        return Output(self.head(h), (h, h.argmax(-1)))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(6, 6), nn.Linear(6, 3), reentrant

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return checkpoint(self.second, h, use_reentrant=self.reentrant)


class Hypernet(nn.Module):
    """The weights of one layer are the output of another, one matrix an example."""

    def __init__(self):
        super().__init__()
        self.maker, self.head = nn.Linear(6, 36), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.einsum("bij,bj->bi", self.maker(x).view(-1, 6, 6) / math.sqrt(6), x))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 3)

    def forward(self, x, other):
        return self.head((self.tower(x) - self.tower(other)).abs())
