"""More models with their losses, as in `label_models`: (model, inputs, targets, loss), made under a seed."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

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


def causal(m, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return m.h(m.t(m.e(x), mask=mask, is_causal=True))


def cross(m, x, mask):
    return m.h(m.t(x, x[:, :2], src_key_padding_mask=mask).mean(1))


def roped(m, x):
    q, k, v = m.a(x).reshape(len(x), x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
    angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], 2, 2)) * turn).flatten(-2)
        for t in (q, k)
    )
    return m.h(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).mean(1))


def patches(m, x):
    h = m.p(x).flatten(2).transpose(1, 2)
    h = torch.cat([m.c.expand(len(x), -1, -1), h], 1)
    return m.h(m.t(h)[:, 0])


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.p, self.c = nn.Conv2d(1, 8, 4, 4), nn.Parameter(normal(1, 1, 8))
        self.t = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True)
        self.h = nn.Linear(8, 3)

    forward = patches


class Perceiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.z, self.a = nn.Parameter(normal(3, 8)), nn.MultiheadAttention(8, 2, batch_first=True)
        self.h = nn.Linear(8, 3)

    def forward(self, x):
        z = self.z.expand(len(x), -1, -1)
        return self.h(self.a(z, x, x)[0].mean(1))


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(normal(6, 5)), nn.Parameter(normal(5, 3))])
        self.b = nn.ParameterDict({"a": nn.Parameter(normal(5))})

    def forward(self, x):
        return torch.tanh(x @ self.w[0] + self.b["a"]) @ self.w[1]


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


def solved(m, x):
    for _ in range(4):
        x = x + 0.25 * torch.tanh(m.a(x))
    return m.h(x)


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


def messages(m, x, edges):
    out = torch.zeros_like(x)
    source = x.gather(1, edges[..., :1].expand(-1, -1, x.shape[2]))
    out = out.scatter_add(1, edges[..., 1:].expand(-1, -1, x.shape[2]), torch.relu(m.a(source)))
    return m.h((x + out).mean(1))


def deep_sets(m, x, mask):
    h = torch.relu(m.a(x)) * mask[..., None]
    return m.h(h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def hyper(m, x):
    w = m.w(x).reshape(len(x), 6, 3)
    return torch.bmm(x[:, None], w)[:, 0] + m.b(x)


def inside(m, x):
    bumped = {name: p + 0.1 for name, p in m.a.named_parameters()}
    return m.h(torch.tanh(torch.func.functional_call(m.a, bumped, (x,))))


def capsules(m, x):
    u, b = m.a(x).reshape(len(x), 4, 3, 2), x.new_zeros(len(x), 4, 3)
    for _ in range(2):
        v = (b.softmax(2)[..., None] * u).sum(1)
        v = v * v.norm(dim=-1, keepdim=True) / (1 + v.square().sum(-1, keepdim=True))
        b = b + (u * v[:, None]).sum(-1)
    return v.norm(dim=-1)


def penalised(m, x):
    x = x.detach().requires_grad_()
    out = m.b(torch.tanh(m.a(x)))
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out, (g.norm(dim=1) - 1).square()


def kl(p, q):
    return F.kl_div(p.log_softmax(1), q.softmax(1), reduction="none").sum(1)


def by_row(out, y):
    mask = (y > 2).float()
    losses = F.cross_entropy(out.transpose(1, 2), y, reduction="none") * mask
    return (losses.sum(1) / mask.sum(1).clamp(min=1)).mean()


def dice(out, y):
    p, y = out.sigmoid().flatten(1), y.flatten(1).float()
    return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()


def ctc(out, y):
    return nn.CTCLoss()(out.log_softmax(2).transpose(0, 1), y % 2 + 1, [6] * len(y), [2] * len(y))


def of_one(layer, width=5, **more):
    return net(lambda m, x: m.h(m.a(x)), a=lambda: layer, h=linear(width, 3), **more)


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def images_to(*layers, size):
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten(), nn.Linear(size, 3))


relu, X, T, V, W = nn.ReLU, lambda: rows(6), lambda: rows(6, 4), lambda: rows(5, 8), ids
conv = lambda a, b, k, **o: lambda: nn.Conv2d(a, b, k, **o)  # noqa: E731
last = lambda m, x: m.h(m.g(x)[0][:, -1])  # noqa: E731
first = lambda x: (x,)  # noqa: E731
rnn = lambda kind, out=5, **o: net(last, g=lambda: kind(4, 5, batch_first=True, **o), h=linear(out, 3))  # noqa: E731
number = lambda: normal(B)  # noqa: E731
of_tokens = lambda: ids(5)  # noqa: E731

#: Name: (model, inputs, targets, loss), each but the last to be called.
SHAPES = {
    # recurrent
    "gru, two ways": (rnn(nn.GRU, 10, bidirectional=True), T, labels, ce),
    "lstm, projected": (rnn(nn.LSTM, 2, proj_size=2), T, labels, ce),
    "rnn, relu, two layers": (rnn(nn.RNN, num_layers=2, nonlinearity="relu"), T, labels, ce),
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
    "causal, tokens by row": (
        net(causal, e=lambda: nn.Embedding(11, 8), h=linear(8, 11),
            t=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 1)),
        lambda: (ids(),), ids, by_row,
    ),
    "encoder and decoder, padded": (
        net(cross, t=lambda: nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True), h=linear(8, 3)),
        lambda: (normal(B, 5, 8), torch.arange(5)[None] >= torch.randint(2, 6, (B, 1))), labels, ce,
    ),
    "attention, time first": (
        net(lambda m, x: (lambda s: m.h(m.a(s, s, s)[0].mean(0)))(x.transpose(0, 1)),
            a=lambda: nn.MultiheadAttention(8, 2), h=linear(8, 3)), V, labels, ce,
    ),
    "rotary": (net(roped, a=linear(8, 24), h=linear(8, 3)), V, labels, ce),
    "vit": (Vit, lambda: (images(),), labels, ce),
    "perceiver": (Perceiver, V, labels, ce),
    "linear attention": (
        net(lambda m, x: m.h((F.elu(m.q(x)) + 1) @ ((F.elu(m.k(x)) + 1).mT @ m.v(x))).mean(1),
            q=linear(8, 4), k=linear(8, 4), v=linear(8, 5), h=linear(5, 3)), V, labels, ce,
    ),
    # images
    "depthwise": (images_to(conv(4, 4, 3, groups=4), conv(4, 2, 1), size=72), lambda: (images(4),), labels,
        ce),
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
    "frozen batch norm": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(144, 3)),
        lambda: (images(),), labels, ce,
    ),
    # parametrisations
    "spectral norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), X,
        labels, ce),
    "spectral norm, old": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), X,
            labels, ce,
    ),
    "weight norm, conv": (images_to(lambda: weight_norm(nn.Conv2d(1, 2, 3)), relu, size=72),
                          lambda: (images(),), labels, ce),
    "orthogonal": (lambda: nn.Sequential(orthogonal(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), X,
        labels, ce),
    "lists and dicts of parameters": (Dictionary, X, labels, ce),
    "complex, fourier": (Complex, X, labels, ce),
    "hypernetwork": (net(hyper, w=linear(6, 18), b=linear(6, 3)), X, labels, ce),
    "functional_call": (net(inside, a=linear(6, 5), h=linear(5, 3)), X, labels, ce),
    "gradient reversal": (
        net(lambda m, x: (m.b(m.a(x)), m.c(Reversed.apply(m.a(x)))), a=linear(6, 5), b=linear(5, 3),
            c=linear(5, 3)),
        X, labels, lambda out, y: ce(out[0], y) + 0.3 * ce(out[1], (y + 1) % 3),
    ),
    "checkpointed": (
        net(lambda m, x: m.h(checkpoint(lambda t: torch.tanh(m.a(t)), x, use_reentrant=False)), a=linear(6,
            5),
            h=linear(5, 3)), X, labels, ce,
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
    "solver": (net(solved, a=linear(6, 6), h=linear(6, 3)), X, labels, ce),
    "messages": (net(messages, a=linear(4, 4), h=linear(4, 3)),
                 lambda: (normal(B, 5, 4), torch.randint(0, 5, (B, 8, 2))), labels, ce),
    "sets": (net(deep_sets, a=linear(4, 5), h=linear(5, 3)),
             lambda: (normal(B, 6, 4), (torch.rand(B, 6) < 0.7).float()), labels, ce),
    "points": (net(lambda m, x: m.h(m.a(x).amax(1)), a=linear(4, 5), h=linear(5, 3)), T, labels, ce),
    "capsules": (net(capsules, a=linear(6, 24)), X, labels, lambda out, y: F.multi_margin_loss(out, y)),
    "bag, largest": (net(lambda m, x: m.h(m.e(x)), e=lambda: nn.EmbeddingBag(11, 4, mode="max"),
        h=linear(4, 3)),
                     lambda: (ids(),), labels, ce),
    "bag, weighted": (
        net(lambda m, x, w: m.h(m.e(x, per_sample_weights=w)), e=lambda: nn.EmbeddingBag(11, 4, mode="sum"),
            h=linear(4, 3)), lambda: (ids(), torch.rand(B, 5)), labels, ce,
    ),
    "bilinear": (net(lambda m, x, z: m.a(x, z), a=lambda: nn.Bilinear(6, 4, 3)),
                 lambda: (normal(B, 6), normal(B, 4)), labels, ce),
    "prelu": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3)), X, labels, ce),
    # losses
    "focal": (mlp, X, labels, lambda o, y: (lambda c: ((1 - (-c).exp()) ** 2 * c).mean())(
        F.cross_entropy(o, y, reduction="none"))),
    "smoothed": (mlp, X, labels, lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1)),
    "soft targets": (mlp, X, lambda: torch.rand(B, 3).softmax(1), ce),
    "quantile": (mlp, X, lambda: normal(B, 3), lambda o, y: torch.max(0.9 * (y - o), 0.1 * (o - y)).mean()),
    "gaussian": (mlp, X, number, lambda o, y: F.gaussian_nll_loss(o[:, 0], y, o[:, 1].exp())),
    "poisson": (mlp, X, lambda: torch.rand(B, 3) * 4, F.poisson_nll_loss),
    "many labels": (mlp, X, lambda: torch.randint(0, 2, (B, 3)).float(),
                    lambda o, y: F.binary_cross_entropy_with_logits(o, y, pos_weight=torch.tensor([2.0,
                        1.0, 3.0]))),
    "hinge": (mlp, X, lambda: normal(B).sign(), lambda o, y: (1 - y * o[:, 0]).clamp(min=0).mean()),
    "reinforced": (mlp, X, number, lambda o, y: -(o.log_softmax(1)[:, 0] * y).mean()
                   - 0.01 * torch.distributions.Categorical(logits=o).entropy().mean()),
    "own places": (mlp, X, labels, lambda o, y: -o.log_softmax(1)[torch.arange(len(y)), y].mean()),
    "time first, outputs": (
        net(lambda m, x: m.h(m.g(x.transpose(0, 1))[0]), g=lambda: nn.GRU(4, 5), h=linear(5, 3)),
        T, lambda: torch.randint(0, 3, (B, 6)), lambda o, y: F.cross_entropy(o.permute(1, 2, 0), y),
    ),
    "two time steps of losses": (
        net(lambda m, x: m.h(m.g(x)[0]), g=lambda: nn.RNN(4, 5, batch_first=True), h=linear(5, 3)),
        T, labels, lambda o, y: ce(o[:, 2], y) + 0.5 * ce(o[:, -1], y),
    ),
    "discriminator, hinge": (mlp, X, number, lambda o, y: F.relu(1 - o[:, 0]).mean() + F.relu(1 + o[:,
        1]).mean()),
    "score matching": (net(lambda m, x, t: m.b(torch.tanh(m.a(torch.cat([x, t[:, None]], 1)))) / (t[:,
        None] + 0.1),
                           a=linear(7, 8), b=linear(8, 6)),
                       lambda: (normal(B, 6), torch.rand(B)), lambda: normal(B, 6),
                       lambda o, y: (o + y).square().sum(1).mean()),
}  # fmt: skip
