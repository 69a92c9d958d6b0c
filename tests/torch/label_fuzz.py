"""Random programs between outputs and loss, in which all sizes are equal, so that axes are confused."""

import random

import torch
import torch.nn.functional as F


def along(name, **options):
    return lambda d, t, o: getattr(t, name)(dim=d.randrange(t.dim()), **options)


def entries(function):
    return lambda d, t, o: function(t)


def two(function):
    return lambda d, t, o: function(t, other(d, t, o))


def other(d, t, o):
    """Another tensor that broadcasts with `t`: of the batch, computed from the same, or public."""
    kind, n = d.randrange(8), o["y"].shape[0]
    if kind == 0:
        return o["y"].float()
    if kind == 1:
        return o["y"][:, None].float()
    if kind == 2:
        return torch.linspace(-1, 1, n)
    if kind == 3:
        return t.detach().mean(d.randrange(t.dim()), keepdim=True) if t.dim() else t
    if kind == 4:
        return t.flip(d.randrange(t.dim())) if t.dim() else t
    if kind == 5:
        return o["x"][d.randrange(n)]
    return o["x"] if kind == 6 else t.detach()


def written(d, t, o):
    n = o["y"].shape[0]
    w = d.choice([t.detach().clone(), torch.zeros(t.shape), torch.zeros_like(t), t * 1.0])
    if not t.dim() or t.shape[0] != n:
        return t
    how, i = d.randrange(8), d.randrange(n)
    if how == 0:
        w[i] = o["x"].flatten()[0] if t.dim() == 1 else t.detach()[i]
    elif how == 1:
        w[:, ...] = t.detach()
    elif how == 2:
        w[1:] = t.detach()[:-1]
    elif how == 3:
        w.copy_(t.detach().flip(0))
    elif how == 4 and t.dim() > 1:
        w[:, 0] = t.detach().select(1, 0)
    elif how == 5:
        mask = t.detach() > 0
        w[mask] = torch.arange(float(mask.sum())) if d.random() < 0.5 else d.choice([0.0, 2.0])
    elif how == 6:
        mask = o["y"] > 1
        w[mask] = t.detach()[mask] if d.random() < 0.5 else t.detach()[~mask][:1]
    else:
        w.sub_(t.detach().mean(0))
    return t * w


def indexed(d, t, o):
    n, y = o["y"].shape[0], o["y"]
    if not t.dim() or any(s != n for s in t.shape):
        return t
    place = torch.arange(n)
    choices = [
        lambda: t[place],
        lambda: t[place.flip(0)],
        lambda: t[y],
        lambda: t[[0, 0, *range(2, n)]],
    ]
    if t.dim() > 1:
        choices += [
            lambda: t[place, y],
            lambda: t[:, y],
            lambda: t[y, place],
            lambda: t[:, place.flip(0)],
            lambda: t.gather(d.randrange(t.dim()), o["x"].argsort(d.randrange(2)).expand(t.shape)),
            lambda: torch.zeros_like(t).scatter_add(d.randrange(2), o["x"].argsort(1).expand(t.shape), t),
            lambda: torch.zeros(n, n).index_put((place, y), t[:, 0]) if t.dim() == 2 else t,
            lambda: torch.zeros(n, n).index_put((y, place), t[:, 0]) if t.dim() == 2 else t,
            lambda: torch.zeros(t.shape).index_add(0, y, t),
            lambda: t.index_select(d.randrange(t.dim()), place.roll(1)),
        ]
    return d.choice(choices)()


def shaped(d, t, o):
    n = o["y"].shape[0]
    choices = [
        lambda: t.unsqueeze(d.randrange(t.dim() + 1)),
        lambda: t.reshape(-1),
        lambda: t.T if t.dim() == 2 else t,
    ]
    if t.dim() > 1:
        choices += [
            lambda: t.transpose(0, d.randrange(t.dim())),
            lambda: t.flatten(0, 1),
            lambda: t.reshape(-1, n),
            lambda: t.reshape(n, -1),
            lambda: t.repeat(2, *(1,) * (t.dim() - 1)),
            lambda: t.repeat_interleave(2, 0),
            lambda: t.movedim(0, -1),
            lambda: torch.stack(t.unbind(d.randrange(t.dim())), d.randrange(t.dim())),
            lambda: torch.cat(t.split(n // 2, d.randrange(t.dim())), d.randrange(t.dim())),
            lambda: t.chunk(2, d.randrange(t.dim()))[0],
            lambda: t.unfold(d.randrange(t.dim()), 2, 1),
            lambda: t.diagonal(dim1=0, dim2=1),
            lambda: F.pad(t, (1, 0) * d.randrange(1, t.dim() + 1)),
        ]
    return d.choice(choices)()


def products(d, t, o):
    x, n = o["x"], o["y"].shape[0]
    if t.dim() != 2 or t.shape != (n, n):
        return t
    public = torch.linspace(-1, 1, n * n).reshape(n, n)
    with_ = d.choice([x, x.T, t.detach(), t.detach().T, public, t])
    letters = d.choice(
        ["ab,bc->ac", "ab,ab->a", "ab,ab->b", "ab,cb->ac", "ab,ac->abc", "ab,ba->a", "ab,ab->ab"]
    )
    return d.choice(
        [
            lambda: t @ with_,
            lambda: with_ @ t,
            lambda: torch.einsum(letters, t, with_),
            lambda: torch.addmm(with_, t, public),
            lambda: F.linear(t, with_),
            lambda: torch.cdist(t, public),
            lambda: torch.bmm(t[None].expand(n, n, n), with_[:, :, None].expand(n, n, n)),
            lambda: F.conv1d(t[:, None], public[:2, None, :2]),
            lambda: F.conv1d(t[None], public[:, :, None]),
            lambda: F.layer_norm(t, (n,)),
            lambda: F.layer_norm(t, (n, n)),
            lambda: F.softmax(t @ with_, d.randrange(2)),
            lambda: F.batch_norm(t, None, None, training=True),
            lambda: F.instance_norm(t[None]),
            lambda: F.instance_norm(t[:, None]),
            lambda: F.scaled_dot_product_attention(t[:, None], with_[:, None], with_[:, None]),
            lambda: F.scaled_dot_product_attention(t[None], with_[None], with_[None]),
            lambda: F.avg_pool1d(t[None], 2),
            lambda: F.max_pool1d(t[:, None], 2),
            lambda: F.group_norm(t, 2),
            lambda: torch.cdist(t.T, public),
            lambda: torch.cdist(public, with_.T),
            lambda: torch.renorm(t, 2, 0, 0.5),
            lambda: torch.diag_embed(t, dim1=0, dim2=1),
            lambda: F.pixel_unshuffle(t.reshape(n, 2, 2), 2).reshape(n, n),
            lambda: F.pixel_shuffle(t.reshape(n, 2, 2), 2),
            lambda: F.unfold(t.reshape(n, 2, 2), 2).reshape(n, n),
            lambda: F.fold(t[:, :2], (3, 1), (2, 1)),
            lambda: F.fold(t[:, :, None], 2, 2),
            lambda: torch.linalg.det(t.reshape(n, 2, 2)),
        ]
    )()


def losses(d, t, o):
    x, y, n = o["x"], o["y"], o["y"].shape[0]
    if t.dim() != 2 or t.shape != (n, n):
        return t
    kind = d.choice(["none", "mean", "sum"])
    target = d.choice([x, x.T, y.float(), y[:, None].float(), x[:1]])
    return d.choice(
        [
            lambda: F.cross_entropy(t, y, reduction=kind),
            lambda: F.cross_entropy(t.T, y, reduction=kind),
            lambda: F.cross_entropy(t, torch.arange(n), reduction=kind),
            lambda: F.mse_loss(t, target, reduction=kind),
            lambda: F.smooth_l1_loss(t, target, reduction=kind),
            lambda: F.kl_div(t, target.softmax(-1), reduction=kind),
            lambda: F.binary_cross_entropy_with_logits(t, x.sigmoid(), reduction=kind),
            lambda: F.multi_margin_loss(t, y, reduction=kind),
            lambda: F.cosine_embedding_loss(t, x, y * 2.0 - 1, reduction=kind),
            lambda: F.triplet_margin_loss(t, x, x.T, reduction=kind),
            lambda: F.nll_loss(t, y, ignore_index=0, reduction=kind.replace("mean", "sum")),
            lambda: F.cross_entropy(t, y, torch.ones(n) * 2, reduction=kind.replace("mean", "sum")),
            lambda: F.gaussian_nll_loss(t, target, x.exp(), reduction=kind),
        ]
    )()


ENTRIES = (torch.exp, torch.tanh, torch.square, torch.sigmoid, F.softplus, F.elu, torch.abs, F.gelu)
AXES = ("softmax", "log_softmax", "cumsum", "logsumexp", "sum", "mean", "amax", "prod", "norm", "std")
STEPS = [
    *(entries(f) for f in ENTRIES),
    *(along(name) for name in AXES),
    *(along(name, keepdim=True) for name in ("sum", "mean", "amax", "norm")),
    lambda d, t, o: t.sort(d.randrange(t.dim())).values,
    lambda d, t, o: t.max(d.randrange(t.dim())).values,
    lambda d, t, o: t.flip(d.randrange(t.dim())),
    lambda d, t, o: t.roll(1, d.randrange(t.dim())),
    *(two(f) for f in (torch.add, torch.sub, torch.mul, torch.maximum, torch.atan2)),
    lambda d, t, o: torch.where(other(d, t, o) > 0, t, other(d, t, o)),
    lambda d, t, o: t / (1 + other(d, t, o).abs()),
    lambda d, t, o: t / t.detach().abs().sum(),
    *(2 * [written] + 3 * [indexed] + 3 * [shaped] + 3 * [products] + 2 * [losses]),
]


def program(seed):
    """A loss as a function of (outputs, targets, numbers)."""

    def loss(o, y, x):
        d, t = random.Random(seed), o
        for _ in range(d.randrange(1, 6)):
            t = d.choice(STEPS)(d, t, {"y": y, "x": x})
            if t.numel() > 4000:
                break
        how = d.randrange(4)
        if how == 0:
            return t.sum() / len(y)
        return t.mean() if how < 3 or t.dim() < 2 else t.flatten(1).sum(1).mean()

    return loss
