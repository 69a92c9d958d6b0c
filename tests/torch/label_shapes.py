"""More models with their losses, as in `label_models`: (model, inputs, targets, loss), made under a seed."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from tests.torch.label_models import B, Of, ce, ids, images, labels

normal = torch.randn


def rows(*shape):
    return (normal(B, *shape),)


def net(forward, **layers):
    return lambda: Of(forward, **{name: make() for name, make in layers.items()})


def linear(a, b):
    return lambda: nn.Linear(a, b)


def seq(*layers):
    return lambda: nn.Sequential(*layers)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return -g

    generate_vmap_rule = True


def cells(m, x):
    h = c = x.new_zeros(len(x), 5)
    for t in range(x.shape[1]):
        h, c = m.g(x[:, t], (h, c))
    return m.h(h)


def packed_time_first(m, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x.transpose(0, 1), lengths.cpu(), enforce_sorted=False)
    out, _ = nn.utils.rnn.pad_packed_sequence(m.g(packed)[0], total_length=x.shape[1])
    return m.h(out.sum(0))


def translated(m, x, y):
    _, h = m.e(m.i(x))
    return m.h(m.d(m.i(y), h)[0]).transpose(1, 2)


def roped(m, x):
    q, k, v = m.a(x).reshape(len(x), x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
    angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], 2, 2)) * turn).flatten(-2)
        for t in (q, k)
    )
    return m.h(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).mean(1))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.h = nn.Parameter(normal(4, 5, 2)), nn.Linear(5, 3)

    def forward(self, x):
        return self.h((torch.fft.rfft(x)[:, :4] @ torch.view_as_complex(self.w)).abs())


def quantised(m, x):
    z = m.a(x)
    q = m.e(torch.cdist(z, m.e.weight).argmin(1))
    return m.b(z + (q - z).detach()), z, q


def vq_loss(out, y):
    made, z, q = out
    rest = (q - z.detach()).square().sum(1) + 0.25 * (z - q.detach()).square().sum(1)
    return (F.cross_entropy(made, y, reduction="none") + rest).mean()


def adaptive(m, x):
    h, done = m.a(x), 0.0
    while float(done) < 0.9 and float(done) >= 0:
        h, done = torch.tanh(m.b(h)), done + m.s(h).sigmoid().detach().amin() + 0.2
    return m.h(h)


def routed(m, x):
    weights, chosen = m.g(x).softmax(-1).topk(2, -1)
    out = torch.zeros(*x.shape[:-1], 3)
    for number, expert in enumerate(m.es):
        out = out + expert(x) * (weights * (chosen == number)).sum(-1, keepdim=True)
    return out.mean(1)


def expert_choice(m, x):
    score = m.g(x).softmax(-1).transpose(1, 2)
    best, token = score.topk(2, -1)
    made = torch.stack([e(x) for e in m.es], 1)
    made = made.gather(2, token[..., None].expand(-1, -1, -1, 3))
    return (made * best[..., None]).sum((1, 2))


def inside(m, x):
    bumped = {name: p + 0.1 for name, p in m.a.named_parameters()}
    return m.h(torch.tanh(torch.func.functional_call(m.a, bumped, (x,))))


def penalised(m, x):
    x = x.detach().requires_grad_()
    out = m.b(torch.tanh(m.a(x)))
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out, (g.norm(dim=1) - 1).square()


def dice(out, y):
    p, y = out.sigmoid().flatten(1), y.flatten(1).float()
    return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()


def ctc(out, y):
    return nn.CTCLoss()(out.log_softmax(2).transpose(0, 1), y % 2 + 1, [6] * len(y), [2] * len(y))


def images_to(*layers, size):
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten(), nn.Linear(size, 3))


relu, X, T, V = nn.ReLU, lambda: rows(6), lambda: rows(6, 4), lambda: rows(5, 8)
conv = lambda a, b, k, **o: lambda: nn.Conv2d(a, b, k, **o)  # noqa: E731
last = lambda m, x: m.h(m.g(x)[0][:, -1])  # noqa: E731
rnn = lambda kind, out=5, **o: net(last, g=lambda: kind(4, 5, batch_first=True, **o), h=linear(out, 3))  # noqa: E731
number = lambda: normal(B)  # noqa: E731

#: Name: (model, inputs, targets, loss), each but the last to be called.
SHAPES = {
    # recurrent
    "gru, two ways": (rnn(nn.GRU, 10, bidirectional=True), T, labels, ce),
    "lstm, projected": (rnn(nn.LSTM, 2, proj_size=2), T, labels, ce),
    "lstm cells": (net(cells, g=lambda: nn.LSTMCell(4, 5), h=linear(5, 3)), T, labels, ce),
    "packed, time first": (
        net(packed_time_first, g=lambda: nn.LSTM(4, 5), h=linear(5, 3)),
        lambda: (normal(B, 6, 4), torch.randint(1, 7, (B,))), labels, ce,
    ),
    "translation": (
        net(translated, i=lambda: nn.Embedding(11, 4), e=lambda: nn.GRU(4, 5, batch_first=True),
            d=lambda: nn.GRU(4, 5, batch_first=True), h=linear(5, 11)),
        lambda: (ids(), ids(4)), lambda: ids(4), ce,
    ),
    "ctc": (net(lambda m, x: m.h(m.g(x)[0]), g=lambda: nn.GRU(4, 5, batch_first=True), h=linear(5, 3)),
            T, lambda: ids(2), ctc),
    # attention
    "attention, time first": (
        net(lambda m, x: (lambda s: m.h(m.a(s, s, s)[0].mean(0)))(x.transpose(0, 1)),
            a=lambda: nn.MultiheadAttention(8, 2), h=linear(8, 3)), V, labels, ce,
    ),
    "rotary": (net(roped, a=linear(8, 24), h=linear(8, 3)), V, labels, ce),
    # images
    "circular, dilated": (
        images_to(conv(1, 2, 3, padding=2, dilation=2, padding_mode="circular"), relu, size=128),
        lambda: (images(),), labels, ce,
    ),
    "conv3d": (images_to(lambda: nn.Conv3d(1, 2, 2), relu, size=54), lambda: rows(1, 4, 4, 4), labels, ce),
    "transposed, one axis": (
        net(lambda m, x: m.h(m.a(x).mean(2)), a=lambda: nn.ConvTranspose1d(4, 5, 3, 2), h=linear(5, 3)),
        lambda: rows(4, 6), labels, ce,
    ),
    "pixel shuffle": (seq(nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2)), lambda: (images(1, 4),),
                      lambda: images(1, 8), F.l1_loss),
    "unpooled": (
        net(lambda m, x: m.b(F.max_unpool2d(*F.max_pool2d(m.a(x), 2, return_indices=True), 2)),
            a=conv(1, 3, 3, padding=1), b=conv(3, 1, 1)),
        lambda: (images(),), images, F.smooth_l1_loss,
    ),
    "unfolded": (net(lambda m, x: m.a(F.unfold(x, 3).transpose(1, 2)).mean(1), a=linear(9, 3)),
                 lambda: (images(),), labels, ce),
    "dice by row": (seq(nn.Conv2d(1, 1, 3, padding=1)), lambda: (images(),),
                    lambda: torch.randint(0, 2, (B, 1, 8, 8)), dice),
    "segmentation, ignored": (seq(nn.Conv2d(1, 3, 3, padding=1)), lambda: (images(),),
                              lambda: torch.randint(0, 3, (B, 8, 8)),
                              lambda out, y: F.cross_entropy(out, y, ignore_index=1,
                                  reduction="none").mean()),
    "response norm, adaptive max": (
        images_to(conv(1, 4, 3), lambda: nn.LocalResponseNorm(2), lambda: nn.AdaptiveMaxPool2d(2), size=16),
        lambda: (images(),), labels, ce,
    ),
    # parametrisations
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), X,
        labels, ce),
    "weight norm, conv": (images_to(lambda: weight_norm(nn.Conv2d(1, 2, 3)), relu, size=72),
                          lambda: (images(),), labels, ce),
    "orthogonal": (lambda: nn.Sequential(orthogonal(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), X,
        labels, ce),
    "complex, fourier": (Complex, X, labels, ce),
    "functional_call": (net(inside, a=linear(6, 5), h=linear(5, 3)), X, labels, ce),
    "gradient reversal": (
        net(lambda m, x: (m.b(m.a(x)), m.c(Reversed.apply(m.a(x)))), a=linear(6, 5), b=linear(5, 3),
            c=linear(5, 3)),
        X, labels, lambda out, y: ce(out[0], y) + 0.3 * ce(out[1], (y + 1) % 3),
    ),
    "gradient penalty": (
        net(penalised, a=linear(6, 5), b=linear(5, 1)), X, number,
        lambda out, y: (out[0][:, 0] * y).mean() + 10 * out[1].mean(),
    ),
    # routes, sets and graphs
    "tokens to experts": (
        net(routed, g=linear(4, 3), es=lambda: nn.ModuleList(nn.Linear(4, 3) for _ in range(3))), T,
            labels, ce,
    ),
    "experts choose": (
        net(expert_choice, g=linear(4, 3), es=lambda: nn.ModuleList(nn.Linear(4, 3) for _ in range(3))), T,
            labels, ce,
    ),
    "vector quantisation": (
        net(quantised, a=linear(6, 4), e=lambda: nn.Embedding(5, 4), b=linear(4, 3)), X, labels, vq_loss,
    ),
    "adaptive depth": (net(adaptive, a=linear(6, 5), b=linear(5, 5), s=linear(5, 1), h=linear(5, 3)), X,
        labels, ce),
    "bag, largest": (net(lambda m, x: m.h(m.e(x)), e=lambda: nn.EmbeddingBag(11, 4, mode="max"),
        h=linear(4, 3)),
                     lambda: (ids(),), labels, ce),
    "bag, weighted": (
        net(lambda m, x, w: m.h(m.e(x, per_sample_weights=w)), e=lambda: nn.EmbeddingBag(11, 4, mode="sum"),
            h=linear(4, 3)), lambda: (ids(), torch.rand(B, 5)), labels, ce,
    ),
    # losses
    "time first, outputs": (
        net(lambda m, x: m.h(m.g(x.transpose(0, 1))[0]), g=lambda: nn.GRU(4, 5), h=linear(5, 3)),
        T, lambda: torch.randint(0, 3, (B, 6)), lambda o, y: F.cross_entropy(o.permute(1, 2, 0), y),
    ),
    "two time steps of losses": (
        net(lambda m, x: m.h(m.g(x)[0]), g=lambda: nn.RNN(4, 5, batch_first=True), h=linear(5, 3)),
        T, labels, lambda o, y: ce(o[:, 2], y) + 0.5 * ce(o[:, -1], y),
    ),
    "score matching": (net(lambda m, x, t: m.b(torch.tanh(m.a(torch.cat([x, t[:, None]], 1)))) / (t[:,
        None] + 0.1),
                           a=linear(7, 8), b=linear(8, 6)),
                       lambda: (normal(B, 6), torch.rand(B)), lambda: normal(B, 6),
                       lambda o, y: (o + y).square().sum(1).mean()),
}  # fmt: skip
