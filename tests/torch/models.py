"""Models that people train, small, each with a batch of rows and its loss: for sums against single rows."""

# ruff: noqa: E731

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

B = 9
ce = F.cross_entropy
normal, Linear, seq = torch.randn, nn.Linear, nn.Sequential


@dataclass(frozen=True)
class Shape:
    """What makes a model, its inputs and its targets, under one seed; and how a loop calls it.

    A model may draw (`random`) or mix rows (`mixes`). Its rows may go one after another (`loops`), and its
    code may be written for one row (`alone`).
    """

    make: Any
    inputs: Any
    targets: Any
    loss: Any = ce
    call: Any = lambda model, *inputs: model(*inputs)
    random: bool = False
    mixes: bool = False
    loops: bool = False
    alone: bool = False
    half: bool = False
    options: dict = field(default_factory=dict)

    def made(self):
        """The model and its rows."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return self.make().train(), (*self.inputs(), self.targets())

    def output(self, model, inputs):
        """What the loss takes, under autocast if the shape is one of half precision."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            found = self.call(model, *inputs)
        return found.float() if self.half else found


@dataclass
class Output:
    logits: torch.Tensor


class Of(nn.Module):
    """Layers, and a function of them and the inputs as forward()."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.own = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.own(self, *inputs, **named)


def net(forward, **layers):
    return lambda: Of(forward, **{name: make() for name, make in layers.items()})


def lin(a, b, **options):
    return lambda: Linear(a, b, **options)


def emb(width=4, words=11, **options):
    return lambda: nn.Embedding(words, width, **options)


def rows(*shape):
    return lambda: (normal(B, *shape),)


def labels(classes=3):
    return torch.randint(0, classes, (B,))


def ids(length=5, words=11):
    return torch.randint(0, words, (B, length))


def images(channels=1, side=8):
    return normal(B, channels, side, side)


def mlp(*between):
    return lambda: seq(Linear(6, 5), nn.Tanh(), *(make() for make in between), Linear(5, 3))


def images_to(*layers, size):
    return lambda: seq(*(layer() for layer in layers), nn.Flatten(), Linear(size, 3))


def conv(a, b, k=3, **options):
    return lambda: nn.Conv2d(a, b, k, **options)


def last_of(make, out=5):
    return net(lambda m, x: m.h(m.g(x)[0][:, -1]), g=make, h=lin(out, 3))


def packed(m, x, lengths):
    given = pack_padded_sequence(m.e(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
    return m.h(m.g(given)[1][-1])


def packed_time_first(m, x, lengths):
    given = pack_padded_sequence(x.transpose(0, 1), lengths.cpu(), enforce_sorted=False)
    return m.h(pad_packed_sequence(m.g(given)[0], total_length=x.shape[1])[0].sum(0))


def cells(m, x):
    h = c = x.new_zeros(len(x), 5)
    for t in range(x.shape[1]):
        h, c = m.g(x[:, t], (h, c))
    return m.h(h)


def translated(m, x, y):
    _, h = m.e(m.i(x))
    return m.h(m.d(m.i(y), h)[0]).transpose(1, 2)


def block(m, x, causal=False):
    """A transformer's block, with two heads of four numbers."""
    h = m.qkv(m.first(x)).reshape(len(x), x.shape[1], 3, 2, -1)
    q, k, v = h.permute(2, 0, 3, 1, 4)
    x = x + m.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(x.shape))
    return x + m.mlp(m.second(x))


BLOCK = {
    "qkv": lin(8, 24), "out": lin(8, 8), "first": lambda: nn.LayerNorm(8), "second": lambda: nn.LayerNorm(8),
    "mlp": lambda: seq(Linear(8, 16), nn.GELU(), Linear(16, 8)),
}  # fmt: skip


def gpt(tied):
    """Positions have no axis of rows where the head is tied to the words, and one where it is not."""

    def forward(m, t):
        places = torch.arange(t.shape[1])
        h = m.words(t) + m.places(places if tied else places.expand(len(t), -1))
        return m.head(m.norm(block(m, h, causal=True))).transpose(1, 2)

    def make():
        model = net(forward, words=emb(8), places=emb(8, 5), norm=lambda: nn.LayerNorm(8),
                    head=lin(8, 11, bias=False), **BLOCK)()  # fmt: skip
        if tied:
            model.head.weight = model.words.weight
        return model

    return make


class Vit(nn.Module):
    """Patches, and a class token and positions that are parameters of its own."""

    def __init__(self):
        super().__init__()
        self.patch, self.block = nn.Conv2d(1, 8, 4, stride=4), net(block, **BLOCK)()
        self.token, self.places = nn.Parameter(normal(1, 1, 8) / 9), nn.Parameter(normal(1, 5, 8) / 9)
        self.head = Linear(8, 3)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        return self.head(self.block(h)[:, 0])


def roped(m, x):
    q, k, v = m.a(x).reshape(len(x), x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
    angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], 2, 2)) * turn).flatten(-2)
        for t in (q, k)
    )
    return m.h(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).mean(1))


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def masked():
    return ids(), torch.arange(5)[None] >= torch.randint(1, 6, (B, 1))


def residual(m, x):
    return F.relu(x + m.b(m.r(m.n(m.a(x)))))


RESIDUAL = net(
    residual, a=conv(4, 4, padding=1, bias=False), n=lambda: nn.GroupNorm(2, 4),
    r=lambda: nn.ReLU(inplace=True), b=conv(4, 4, padding=1),
)  # fmt: skip


def u_net(m, x):
    a = F.relu(m.a(x))
    return m.o(torch.cat([a, m.u(F.relu(m.b(F.max_pool2d(a, 2))))], 1))


def spatial(m, x):
    grid = F.affine_grid(m.t(x.flatten(1)).reshape(-1, 2, 3), x.shape, align_corners=False)
    return m.h(F.grid_sample(x, grid, align_corners=False).flatten(1))


def variational(m, x):
    mu, logvar = m.e(x).chunk(2, 1)
    return m.d(mu), mu, logvar


def variational_loss(out, y):
    made, mu, logvar = out
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (F.mse_loss(made, y, reduction="sum") + kl) / len(y)


def quantised(m, x):
    z = m.a(x)
    q = m.e(torch.cdist(z, m.e.weight).argmin(1))
    return m.b(z + (q - z).detach()), z, q


def quantised_loss(out, y):
    made, z, q = out
    rest = (q - z.detach()).square().sum(1) + 0.25 * (z - q.detach()).square().sum(1)
    return (ce(made, y, reduction="none") + rest).mean()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.h = nn.Parameter(normal(4, 5, 2)), Linear(5, 3)

    def forward(self, x):
        return self.h((torch.fft.rfft(x)[:, :4] @ torch.view_as_complex(self.w)).abs())


class Gate(nn.Module):
    """A parameter of its own beside layers, above them or below."""

    def __init__(self):
        super().__init__()
        self.gate, self.layer, self.head = nn.Parameter(torch.zeros(6)), Linear(6, 6), Linear(6, 3)

    def forward(self, x):
        return self.head(x * self.gate.exp() + torch.tanh(self.layer(x)))


class Reversed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return -g


def repeated(m, x, n):
    """By a number of the row."""
    h = m.a(x)
    for _ in range(int(n)):
        h = m.b(torch.tanh(h))
    return m.c(h)


def adaptive(m, x):
    """Until a sum of the row is reached."""
    h, done = m.a(x), 0.0
    while float(done) < 0.9 and float(done) >= 0:
        h, done = torch.tanh(m.b(h)), done + m.s(h).sigmoid().detach().amin() + 0.2
    return m.h(h)


def routed(m, x):
    """Each token goes to the expert that its router names, by places."""
    flat = x.reshape(-1, 4)
    weight, chosen = m.g(flat).softmax(-1).max(-1)
    out = torch.zeros_like(flat[:, :3])
    for number, expert in enumerate(m.es):
        at = (chosen == number).nonzero().flatten()
        if at.numel():
            out[at] = expert(flat[at]) * weight[at, None]
    return out.view(*x.shape[:-1], 3).mean(1)


def expert_choice(m, x):
    score = m.g(x).softmax(-1).transpose(1, 2)
    best, token = score.topk(2, -1)
    made = torch.stack([e(x) for e in m.es], 1).gather(2, token[..., None].expand(-1, -1, -1, 3))
    return (made * best[..., None]).sum((1, 2))


def experts(size):
    return {"g": lin(size, 3), "es": lambda: nn.ModuleList(Linear(size, 3) for _ in range(3))}


def messages(m, nodes, edges):
    """Along the edges of each example's graph, by scatter."""
    source, target = edges.unbind(-1)
    sent = torch.tanh(m.message(nodes)).gather(1, source[..., None].expand(-1, -1, 6))
    got = nodes.new_zeros(*nodes.shape[:2], 6).scatter_add(1, target[..., None].expand(-1, -1, 6), sent)
    return m.head(torch.relu(m.update(torch.cat([nodes, got], -1))).mean(1))


def flattened(m, nodes):
    """Rows and nodes in one axis, as libraries for graphs have it."""
    owner = torch.arange(len(nodes)).repeat_interleave(nodes.shape[1])
    h = torch.tanh(m.layer(nodes.reshape(-1, 4)))
    return m.head(h.new_zeros(len(nodes), 6).index_add(0, owner, h))


def inside(m, x):
    bumped = {name: p + 0.1 for name, p in m.a.named_parameters()}
    return m.h(torch.tanh(torch.func.functional_call(m.a, bumped, (x,))))


def penalised(m, x):
    x = x.detach().requires_grad_()
    out = m.b(torch.tanh(m.a(x)))
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out, (g.norm(dim=1) - 1).square()


def lora():
    """A trained update of low rank beside a frozen weight in bfloat16."""

    def forward(m, x):
        return m.base(x.to(torch.bfloat16)).to(x.dtype) + m.up(m.down(x))

    def adapted():
        made = net(forward, base=lin(8, 8), down=lin(8, 2, bias=False), up=lin(2, 8, bias=False))()
        made.base.to(torch.bfloat16).requires_grad_(False)
        return made

    words = nn.Embedding(11, 8).requires_grad_(False)
    return seq(words, adapted(), nn.Tanh(), adapted(), nn.Flatten(), Linear(40, 3))


def again(reentrant):
    forward = lambda m, x: checkpoint(m.b, torch.tanh(m.a(x)), use_reentrant=reentrant)
    return net(forward, a=lin(6, 6), b=lin(6, 3))


def drop_path(m, x):
    return m.b(x + torch.tanh(m.a(x)) * (torch.rand(len(x), 1) < 0.5))


def over_frames(out, y):
    return ce(out.reshape(-1, 11), y.reshape(-1))


X, T, V, I, W = rows(6), rows(6, 4), rows(5, 8), lambda: (images(),), lambda: (ids(),)
LENGTHS = lambda: (normal(B, 6, 4), torch.randint(1, 7, (B,)))
SHAPES = {
    "mlp": Shape(mlp(), X, labels),
    "dropout": Shape(mlp(lambda: nn.Dropout(0.5)), X, labels, random=True),
    "layer norm": Shape(mlp(lambda: nn.LayerNorm(5)), X, labels),
    "rms norm": Shape(mlp(lambda: nn.RMSNorm(5)), X, labels),
    "under autocast": Shape(mlp(), X, labels, half=True),
    "a layer called twice": Shape(net(lambda m, x: m.b(torch.tanh(m.a(torch.tanh(m.a(x))))), a=lin(6, 6),
                                      b=lin(6, 3)), X, labels),
    "regression, in place": Shape(lambda: seq(Linear(6, 8), nn.ReLU(inplace=True), Linear(8, 1)), X,
                                  lambda: normal(B), lambda out, y: F.mse_loss(out.squeeze(1), y)),
    "sequence of vectors": Shape(mlp(), rows(4, 6), labels, call=lambda model, x: model(x).mean(1)),
    # recurrent
    "lstm": Shape(last_of(lambda: nn.LSTM(4, 5, batch_first=True)), T, labels),
    "lstm, two layers and ways": Shape(
        last_of(lambda: nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), 10), T, labels),
    "lstm, projected": Shape(last_of(lambda: nn.LSTM(4, 5, proj_size=2, batch_first=True), 2), T, labels),
    "lstm, of Opacus": Shape(last_of(lambda: DPLSTM(4, 5, batch_first=True)), T, labels),
    "gru, of Opacus": Shape(last_of(lambda: DPGRU(4, 5, batch_first=True)), T, labels),
    "lstm cells": Shape(net(cells, g=lambda: nn.LSTMCell(4, 5), h=lin(5, 3)), T, labels),
    "time first inside": Shape(net(lambda m, x: m.h(m.g(x.transpose(0, 1))[0]), g=lambda: nn.LSTM(4, 5),
                                   h=lin(5, 3)), T, labels, lambda out, y: ce(out[-1], y)),
    "time first": Shape(
        net(lambda m, x: m.b(torch.tanh(m.a(x)).mean(0, keepdim=True)), a=lin(4, 6), b=lin(6, 3)), rows(5, 4),
        labels, call=lambda model, x: model(x.transpose(0, 1))[0], options={"batch_first": False}),
    "tagger": Shape(net(lambda m, x: m.h(m.g(m.e(x))[0]), e=emb(), g=lambda: nn.RNN(4, 5, batch_first=True),
                        h=lin(5, 11)), W, ids, over_frames),
    "packed": Shape(net(packed, e=nn.Identity, g=lambda: nn.GRU(4, 5, batch_first=True), h=lin(5, 3)),
                    LENGTHS, labels, loops=True, alone=True),
    "packed, time first": Shape(net(packed_time_first, g=lambda: nn.LSTM(4, 5), h=lin(5, 3)),
                                LENGTHS, labels, loops=True, alone=True),
    "translation": Shape(net(translated, i=emb(), e=lambda: nn.GRU(4, 5, batch_first=True),
                             d=lambda: nn.GRU(4, 5, batch_first=True), h=lin(5, 11)),
                         lambda: (ids(), ids(4)), lambda: ids(4)),
    # words and attention
    "bag": Shape(net(lambda m, x: m.h(m.e(x)), e=lambda: nn.EmbeddingBag(11, 4), h=lin(4, 3)), W, labels),
    "bag of offsets": Shape(
        net(lambda m, x: m.h(m.e(x.flatten(), torch.arange(0, x.numel(), x.shape[1]))),
            e=lambda: nn.EmbeddingBag(11, 4, mode="sum"), h=lin(4, 3)), W, labels),
    "bag, largest": Shape(net(lambda m, x: m.h(m.e(x)), e=lambda: nn.EmbeddingBag(11, 4, mode="max"),
                              h=lin(4, 3)), W, labels),
    "bag, weighted": Shape(
        net(lambda m, x, w: m.h(m.e(x, per_sample_weights=w)), e=lambda: nn.EmbeddingBag(11, 4, mode="sum"),
            h=lin(4, 3)), lambda: (ids(), torch.rand(B, 5)), labels),
    "padded words": Shape(lambda: seq(emb(4, padding_idx=0)(), nn.Flatten(), Linear(20, 3)), W, labels),
    "gpt, tied": Shape(gpt(True), W, ids),
    "gpt": Shape(gpt(False), W, ids),
    "gpt under autocast": Shape(gpt(False), W, ids, half=True),
    "vit": Shape(Vit, I, labels),
    "encoder with padding": Shape(
        net(lambda m, t, mask: m.h(m.t(m.e(t), src_key_padding_mask=mask).mean(1)), e=emb(8), t=encoder,
            h=lin(8, 3)), masked, labels),
    "attention": Shape(net(lambda m, x: m.h(m.a(x, x, x, need_weights=False)[0].mean(1)),
                           a=lambda: nn.MultiheadAttention(8, 2, batch_first=True), h=lin(8, 3)), V, labels),
    "attention, time first": Shape(
        net(lambda m, x: (lambda s: m.h(m.a(s, s, s)[0].mean(0)))(x.transpose(0, 1)),
            a=lambda: nn.MultiheadAttention(8, 2), h=lin(8, 3)), V, labels),
    "attention of Opacus": Shape(
        net(lambda m, x: (lambda s: m.h(m.a(s, s, s, need_weights=False)[0].mean(0)))(x.transpose(0, 1)),
            a=lambda: DPMultiheadAttention(8, 2), h=lin(8, 3)), V, labels),
    "rotary": Shape(net(roped, a=lin(8, 24), h=lin(8, 3)), V, labels),
    # images
    "resnet": Shape(images_to(conv(1, 4, stride=2), RESIDUAL, RESIDUAL, lambda: nn.AdaptiveAvgPool2d(1),
                              size=4), I, labels),
    "pooled": Shape(images_to(conv(1, 4), nn.ReLU, lambda: nn.MaxPool2d(2), conv(4, 4, 2),
                              lambda: nn.AdaptiveMaxPool2d(1), size=4), I, labels),
    "instance norm": Shape(images_to(conv(1, 4), lambda: nn.InstanceNorm2d(4, affine=True), size=144), I,
                           labels),
    "circular, dilated": Shape(
        images_to(conv(1, 2, padding=2, dilation=2, padding_mode="circular"), nn.ReLU, size=128), I, labels),
    "conv1d": Shape(images_to(lambda: nn.Conv1d(4, 4, 3, padding="same", dilation=2), lambda: nn.PReLU(4),
                              size=24), rows(4, 6), labels),
    "conv3d": Shape(images_to(lambda: nn.Conv3d(1, 2, 2), nn.ReLU, size=54), rows(1, 4, 4, 4), labels),
    "transposed": Shape(net(lambda m, x: m.h(m.a(x).mean(2)), a=lambda: nn.ConvTranspose1d(4, 5, 3, 2),
                            h=lin(5, 3)), rows(4, 6), labels),
    "pixel shuffle": Shape(lambda: seq(conv(1, 4, padding=1)(), nn.PixelShuffle(2)),
                           lambda: (images(1, 4),), images, F.l1_loss),
    "unpooled": Shape(net(lambda m, x: m.b(F.max_unpool2d(*F.max_pool2d(m.a(x), 2, return_indices=True), 2)),
                          a=conv(1, 3, padding=1), b=conv(3, 1, 1)), I, images, F.smooth_l1_loss),
    "unfolded": Shape(net(lambda m, x: m.a(F.unfold(x, 3).transpose(1, 2)).mean(1), a=lin(9, 3)), I, labels),
    "u-net": Shape(net(u_net, a=conv(1, 3, padding=1), b=conv(3, 4, padding=1),
                       u=lambda: nn.ConvTranspose2d(4, 3, 2, 2), o=conv(6, 2, 1)), I,
                   lambda: torch.randint(0, 2, (B, 8, 8))),
    "segmentation, ignored": Shape(
        lambda: seq(conv(1, 3, padding=1)()), I, lambda: torch.randint(0, 3, (B, 8, 8)),
        lambda out, y: ce(out, y, ignore_index=1, reduction="none").mean()),
    "spatial transformer": Shape(net(spatial, t=lin(64, 6), h=lin(64, 3)), I, labels),
    "batch norm": Shape(images_to(conv(1, 4), lambda: nn.BatchNorm2d(4), size=144), I, labels, mixes=True),
    # parametrisations, and layers of one's own
    "spectral norm": Shape(lambda: seq(spectral_norm(Linear(6, 5)), nn.Tanh(), Linear(5, 3)), X, labels),
    "weight norm": Shape(images_to(lambda: weight_norm(nn.Conv2d(1, 2, 3)), nn.ReLU, size=72), I, labels),
    "orthogonal": Shape(lambda: seq(orthogonal(Linear(6, 5)), nn.Tanh(), Linear(5, 3)), X, labels),
    "complex, fourier": Shape(Complex, X, labels),
    "gate": Shape(Gate, X, labels),
    "functional_call": Shape(net(inside, a=lin(6, 5), h=lin(5, 3)), X, labels),
    "lora on bfloat16": Shape(lora, W, labels),
    "hypernetwork": Shape(
        net(lambda m, x: m.h(torch.einsum("bij,bj->bi", m.a(x).view(-1, 6, 6) / math.sqrt(6), x)),
            a=lin(6, 36), h=lin(6, 3)), X, labels),
    "gradient reversal": Shape(
        net(lambda m, x: (m.b(m.a(x)), m.c(Reversed.apply(m.a(x)))), a=lin(6, 5), b=lin(5, 3), c=lin(5, 3)),
        X, labels, lambda out, y: ce(out[0], y) + 0.3 * ce(out[1], (y + 1) % 3)),
    "gradient penalty": Shape(net(penalised, a=lin(6, 5), b=lin(5, 1)), X, lambda: normal(B),
                              lambda out, y: (out[0][:, 0] * y).mean() + 10 * out[1].mean(), loops=True),
    "checkpoint": Shape(again(False), X, labels, loops=True),
    "checkpoint, reentrant": Shape(again(True), X, labels, loops=True),
    # routes, sets and graphs
    "drop path": Shape(net(drop_path, a=lin(6, 6), b=lin(6, 3)), X, labels, random=True),
    "decides by a number": Shape(net(repeated, a=lin(6, 5), b=lin(5, 5), c=lin(5, 3)),
                                 lambda: (normal(B, 6), torch.arange(B)), labels, alone=True),
    "adaptive depth": Shape(net(adaptive, a=lin(6, 5), b=lin(5, 5), s=lin(5, 1), h=lin(5, 3)), X, labels),
    "tokens to experts": Shape(net(routed, **experts(4)), T, labels),
    "experts choose": Shape(net(expert_choice, **experts(4)), T, labels),
    "vector quantisation": Shape(net(quantised, a=lin(6, 4), e=emb(4, 5), b=lin(4, 3)), X, labels,
                                 quantised_loss),
    "graph": Shape(net(messages, message=lin(4, 6), update=lin(10, 6), head=lin(6, 3)),
                   lambda: (normal(B, 5, 4), torch.randint(0, 5, (B, 8, 2))), labels),
    "graph, flattened": Shape(net(flattened, layer=lin(4, 6), head=lin(6, 3)), rows(5, 4), labels),
    # losses and calls
    "vae": Shape(net(variational, e=lin(6, 4), d=lin(2, 6)), X, lambda: normal(B, 6), variational_loss),
    "discriminator": Shape(lambda: seq(Linear(6, 8), nn.LeakyReLU(0.2), Linear(8, 1)), X,
                           lambda: normal(B, 6), lambda out, y: F.softplus(-out).mean()),
    "diffusion": Shape(net(lambda m, x, t: m.b(F.gelu(m.a(x) + m.e(t))), a=lin(6, 8), e=emb(8, 5),
                           b=lin(8, 6)), lambda: (normal(B, 6), torch.randint(0, 5, (B,))),
                       lambda: normal(B, 6), F.mse_loss),
    "two heads in a dict": Shape(net(lambda m, x: {"a": m.a(x), "b": m.b(x)}, a=lin(6, 3), b=lin(6, 1)), X,
                                 labels, lambda out, y: ce(out["a"], y) + 0.1 * out["b"].square().mean()),
    "adaptive softmax": Shape(
        net(lambda m, x, y: m.l(m.b(x), y).loss, b=lin(6, 16),
            l=lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs=[5, 10], div_value=2.0)),
        lambda: (normal(B, 6), (torch.arange(B) * 7) % 20), labels, lambda out, y: out),
    "two calls": Shape(lambda: seq(Linear(6, 5), nn.Tanh(), Linear(5, 4)),
                       lambda: (normal(B, 6), normal(B, 6)), labels,
                       lambda out, y: (1 - F.cosine_similarity(*out)).mean(),
                       lambda m, a, b: (m(a), m(b))),
    "keywords": Shape(net(lambda m, *, features: {"logits": m.b(input=torch.tanh(m.a(input=features)))},
                          a=lin(6, 6), b=lin(6, 3)), X, labels,
                      call=lambda m, x: m(features=x)["logits"]),
    "structured": Shape(net(lambda m, batch: Output(m.b(m.a(batch["x"]))), a=lin(6, 6),
                            b=lin(6, 3)), X, labels, call=lambda m, x: m({"x": x}).logits),
}  # fmt: skip
