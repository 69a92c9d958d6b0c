"""Models of many kinds with their losses: (model, inputs, targets, loss), for sums against loops."""

import torch
import torch.nn.functional as F
from torch import nn

B = 7


class Of(nn.Module):
    """Layers, and a function of them and the inputs as forward()."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.own = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.own(self, *inputs)


def images(channels=1, side=8):
    return torch.randn(B, channels, side, side)


def ids(length=5, words=11):
    return torch.randint(0, words, (B, length))


ce = lambda out, y: F.cross_entropy(out, y)  # noqa: E731
MODELS = {}


def model(make):
    MODELS[make.__name__.strip("_")] = make
    return make


def labels(classes=3):
    return torch.randint(0, classes, (B,))


@model
def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (torch.randn(B, 6),), labels(), ce


@model
def mlp_in_place():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    return net, (torch.randn(B, 6),), torch.randn(B), lambda out, y: F.mse_loss(out.squeeze(1), y)


@model
def cnn():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    )
    return net, (images(),), labels(), ce


@model
def group_norm():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return net, (images(),), labels(), ce


@model
def instance_and_layer_norm():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.InstanceNorm2d(4, affine=True),
        nn.Flatten(),
        nn.LayerNorm(144),
        nn.Linear(144, 3),
    )
    return net, (images(),), labels(), ce


@model
def residual():
    net = Of(
        lambda m, x: m.c(F.relu(m.a(x)) + m.b(x)), a=nn.Linear(6, 5), b=nn.Linear(6, 5), c=nn.Linear(5, 3)
    )
    return net, (torch.randn(B, 6),), labels(), ce


@model
def lstm():
    net = Of(lambda m, x: m.h(m.g(x)[0][:, -1]), g=nn.LSTM(4, 5, batch_first=True), h=nn.Linear(5, 3))
    return net, (torch.randn(B, 6, 4),), labels(), ce


@model
def gru_two_layers():
    net = Of(
        lambda m, x: m.h(m.g(x)[1][-1]), g=nn.GRU(4, 5, num_layers=2, batch_first=True), h=nn.Linear(5, 3)
    )
    return net, (torch.randn(B, 6, 4),), labels(), ce


@model
def lstm_time_first():
    net = Of(lambda m, x: m.h(m.g(x.transpose(0, 1))[0]), g=nn.LSTM(4, 5), h=nn.Linear(5, 3))
    return net, (torch.randn(B, 6, 4),), labels(), lambda out, y: ce(out[-1], y)


@model
def rnn_tagger():
    net = Of(
        lambda m, x: m.h(m.g(m.e(x))[0]),
        e=nn.Embedding(11, 4),
        g=nn.RNN(4, 5, batch_first=True),
        h=nn.Linear(5, 11),
    )
    return net, (ids(),), ids(), lambda out, y: ce(out.reshape(-1, 11), y.reshape(-1))


@model
def packed_gru():
    def forward(m, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return m.h(m.g(packed)[1][-1])

    net = Of(forward, g=nn.GRU(4, 5, batch_first=True), h=nn.Linear(5, 3))
    return net, (torch.randn(B, 6, 4), torch.randint(1, 7, (B,))), labels(), ce


@model
def embedding_mean():
    net = Of(lambda m, x: m.h(m.e(x).mean(1)), e=nn.Embedding(11, 4), h=nn.Linear(4, 3))
    return net, (ids(),), labels(), ce


@model
def embedding_bag():
    net = Of(lambda m, x: m.h(m.e(x)), e=nn.EmbeddingBag(11, 4), h=nn.Linear(4, 3))
    return net, (ids(),), labels(), ce


@model
def tied_language_model():
    net = Of(lambda m, x: m.l(m.e(x)) @ m.e.weight.T, e=nn.Embedding(11, 4), l=nn.Linear(4, 4))
    return net, (ids(),), ids(), lambda out, y: F.cross_entropy(out.transpose(1, 2), y)


@model
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    net = Of(
        lambda m, x: m.h(m.t(x).mean(1)),
        t=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        h=nn.Linear(8, 3),
    )
    return net, (torch.randn(B, 4, 8),), labels(), ce


@model
def attention_with_padding():
    def forward(m, x, mask):
        return m.h(m.a(x, x, x, key_padding_mask=mask, need_weights=False)[0].mean(1))

    mask = torch.arange(4)[None] >= torch.randint(1, 5, (B, 1))
    net = Of(forward, a=nn.MultiheadAttention(8, 2, batch_first=True), h=nn.Linear(8, 3))
    return net, (torch.randn(B, 4, 8), mask), labels(), ce


@model
def vae():
    def forward(m, x):
        mu, logvar = m.e(x).chunk(2, 1)
        return m.d(mu), mu, logvar

    def loss(out, y):
        made, mu, logvar = out
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return (F.mse_loss(made, y, reduction="sum") + kl) / len(y)

    x = torch.randn(B, 6)
    return Of(forward, e=nn.Linear(6, 4), d=nn.Linear(2, 6)), (x,), x, loss


@model
def discriminator_softplus():
    net = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    return net, (torch.randn(B, 6),), torch.randn(B, 6), lambda out, y: F.softplus(-out).mean()


@model
def discriminator_bce():
    net = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    return (
        net,
        (torch.randn(B, 6),),
        torch.randn(B, 6),
        lambda out, y: nn.BCEWithLogitsLoss()(out, torch.ones_like(out)),
    )


@model
def u_net():
    def forward(m, x):
        a = F.relu(m.a(x))
        b = F.relu(m.b(F.max_pool2d(a, 2)))
        return m.o(torch.cat([a, m.u(b)], 1))

    net = Of(
        forward,
        a=nn.Conv2d(1, 3, 3, padding=1),
        b=nn.Conv2d(3, 4, 3, padding=1),
        u=nn.ConvTranspose2d(4, 3, 2, 2),
        o=nn.Conv2d(6, 2, 1),
    )
    return net, (images(),), torch.randint(0, 2, (B, 8, 8)), ce


@model
def diffusion():
    net = Of(
        lambda m, x, t: m.b(F.gelu(m.a(x) + m.e(t))),
        a=nn.Linear(6, 8),
        e=nn.Embedding(5, 8),
        b=nn.Linear(8, 6),
    )
    return net, (torch.randn(B, 6), torch.randint(0, 5, (B,))), torch.randn(B, 6), F.mse_loss


@model
def mixture_of_experts():
    def forward(m, x):
        weights = m.g(x).softmax(1)
        best = weights.topk(1, 1)
        made = torch.stack([e(x) for e in m.es], 1)
        return (made.gather(1, best.indices[..., None].expand(-1, -1, 3)) * best.values[..., None]).sum(1)

    net = Of(forward, g=nn.Linear(6, 3), es=nn.ModuleList(nn.Linear(6, 3) for _ in range(3)))
    return net, (torch.randn(B, 6),), labels(), ce


@model
def two_heads_in_a_dict():
    net = Of(lambda m, x: {"a": m.a(x), "b": m.b(x)}, a=nn.Linear(6, 3), b=nn.Linear(6, 1))
    return (
        net,
        (torch.randn(B, 6),),
        labels(),
        lambda out, y: ce(out["a"], y) + 0.1 * out["b"].square().mean(),
    )


@model
def loss_inside():
    net = Of(lambda m, x, y: F.cross_entropy(m.a(x), y), a=nn.Linear(6, 3))
    y = labels()
    return net, (torch.randn(B, 6), y), y, lambda out, y: out


@model
def decides_by_a_number():
    def forward(m, x, n):
        h = m.a(x)
        for _ in range(int(n)):
            h = m.b(torch.tanh(h))
        return m.c(h)

    net = Of(forward, a=nn.Linear(6, 5), b=nn.Linear(5, 5), c=nn.Linear(5, 3))
    return net, (torch.randn(B, 6), torch.arange(B)), labels(), ce


@model
def spatial_transformer():
    def forward(m, x):
        grid = F.affine_grid(m.t(x.flatten(1)).reshape(-1, 2, 3), x.shape, align_corners=False)
        return m.h(F.grid_sample(x, grid, align_corners=False).flatten(1))

    net = Of(forward, t=nn.Linear(64, 6), h=nn.Linear(64, 3))
    return net, (images(),), labels(), ce


@model
def siamese():
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    return net, (torch.randn(B, 6),), torch.randn(B, 6), "twice"


@model
def deep_equilibrium_weight_norm():
    net = Of(
        lambda m, x: m.h(torch.tanh(m.w(x))),
        w=nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)),
        h=nn.Linear(5, 3),
    )
    return net, (torch.randn(B, 6),), labels(), ce


@model
def conv1d_causal():
    net = Of(lambda m, x: m.h(F.relu(m.c(F.pad(x, (2, 0)))).mean(2)), c=nn.Conv1d(4, 5, 3), h=nn.Linear(5, 3))
    return net, (torch.randn(B, 4, 9),), labels(), ce
