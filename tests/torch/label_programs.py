"""Losses as programs of (outputs, targets, numbers): those of APART keep rows apart, those of MIXED do not.

Outputs `o` have shape (6, 4) and a gradient, targets `y` shape (6,), int64 in 0 … 3, and `x` is as `o`
without one. A loss is a mean over rows.
"""

# ruff: noqa: E731

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 6, 4
PUBLIC = torch.linspace(-1.0, 1.0, WIDTH)
TABLE = torch.linspace(-1.0, 2.0, WIDTH * 3).reshape(WIDTH, 3)
KERNEL = torch.linspace(-1.0, 1.0, 6).reshape(2, 1, 3)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * 2 * ctx.saved_tensors[0]


class Crossed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sum()


def one_hot_by_scatter(o, y, x):
    hot = torch.zeros(len(y), WIDTH).scatter_(1, y[:, None], 1.0)
    return (o * hot).sum(1).mean()


def one_hot_by_places(o, y, x):
    hot = torch.zeros_like(o)
    hot[torch.arange(len(y)), y] = 1.0
    return F.mse_loss(o, hot)


def column_written(o, y, x):
    w = torch.zeros(len(y), WIDTH)
    w[:, 1] = x[:, 0]
    return (o * w).sum(1).mean()


def outputs_written(o, y, x):
    w = torch.zeros(len(y), WIDTH)
    w[:] = o.exp()
    w += o
    return w.square().sum(1).mean()


def own_rows_in_a_loop(o, y, x):
    return torch.stack([F.cross_entropy(o[i : i + 1], y[i : i + 1]) for i in range(len(y))]).mean()


def rows_by_number(o, y, x):
    return torch.stack([(o[i] * x[i]).sum().exp() for i in range(len(y))]).mean()


def in_place(o, y, x):
    z = o * 1.0
    z += x
    z[:, 0] *= 2.0
    z.mul_(x).clamp_(min=-0.5)
    return z.sum(1).mean()


def vae(o, y, x):
    mu, logvar = o.chunk(2, 1)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
    return (kl + F.mse_loss(mu, x[:, :2], reduction="none").sum(1)).mean()


def triplet(o, y, x):
    return F.triplet_margin_loss(o, x, x.abs())


def dice(o, y, x):
    p, t = o.sigmoid(), (x > 0).float()
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def tokens(o, y, x):
    logits, targets = o.reshape(len(y), 2, 2), (x[:, :2] > 0).long()
    mask = (x[:, 2:] > 0).float()
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * mask
    return (each.sum(1) / mask.sum(1).clamp(min=1)).mean()


def layers(o, y, x):
    images = o.reshape(-1, 1, 2, 2)
    made = F.conv2d(F.pad(images, (1, 1, 1, 1)), torch.ones(3, 1, 2, 2) / 3)
    made = F.group_norm(F.max_pool2d(F.relu(made), 2, 1), 1)
    return F.interpolate(made, scale_factor=2.0, mode="bilinear").flatten(1).square().sum(1).mean()


def attention(o, y, x):
    q = o.reshape(len(y), 1, 2, 2)
    k = x.reshape(len(y), 1, 2, 2)
    return F.scaled_dot_product_attention(q, k, k).square().flatten(1).sum(1).mean()


def time_first(o, y, x):
    steps = o.reshape(len(y), 2, 2).transpose(0, 1).contiguous()
    targets = torch.stack([y % 2, y // 2])
    return F.cross_entropy(steps.view(-1, 2), targets.view(-1))


def written_by_hand(o, y, x):
    w = torch.zeros(len(y), WIDTH)
    for i in range(len(y)):
        w[i] = x[0]
    return (o * w).sum(1).mean()


def one_row_on(o, y, x):
    w = torch.zeros(len(y) + 1, WIDTH)
    w[1:] = x
    return (o * w[: len(y)]).sum(1).mean()


def in_order_of_a_mask(o, y, x):
    w = torch.zeros(len(y))
    w[y > 1] = torch.arange(float((y > 1).sum()))
    return (o.sum(1) * w).mean()


#: Functions of torch that work on each entry.
ENTRIES = (
    "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardsigmoid", "hardswish", "hardshrink",
    "softshrink", "tanhshrink", "softsign", "leaky_relu",
)  # fmt: skip
signs = lambda y: 2.0 * (y % 2) - 1
APART = {
    "cross_entropy": lambda o, y, x: F.cross_entropy(o, y),
    "cross_entropy smooth": lambda o, y, x: F.cross_entropy(o, y, label_smoothing=0.1),
    "CrossEntropyLoss": lambda o, y, x: nn.CrossEntropyLoss()(o, y),
    "cross_entropy probabilities": lambda o, y, x: F.cross_entropy(o, x.softmax(1)),
    "cross_entropy none": lambda o, y, x: F.cross_entropy(o, y, reduction="none").mean(),
    "cross_entropy none weights": lambda o, y, x: F.cross_entropy(
        o, y, PUBLIC.exp(), reduction="none"
    ).mean(),
    "cross_entropy segments": lambda o, y, x: F.cross_entropy(
        o.reshape(-1, 2, 2), torch.stack([y % 2, y // 2], 1)
    ),
    "nll_loss": lambda o, y, x: F.nll_loss(o.log_softmax(1), y),
    "mse_loss": lambda o, y, x: F.mse_loss(o, x),
    "MSELoss column": lambda o, y, x: nn.MSELoss()(o[:, 0], y.float()),
    "l1_loss": lambda o, y, x: F.l1_loss(o, x),
    "smooth_l1": lambda o, y, x: F.smooth_l1_loss(o, x),
    "huber": lambda o, y, x: F.huber_loss(o, x),
    "bce": lambda o, y, x: F.binary_cross_entropy(o.sigmoid(), x.sigmoid()),
    "bce logits": lambda o, y, x: F.binary_cross_entropy_with_logits(o[:, 0], y % 2.0),
    "bce logits pos_weight": lambda o, y, x: F.binary_cross_entropy_with_logits(
        o, x.sigmoid(), pos_weight=PUBLIC.exp()
    ),
    "kl_div batchmean": lambda o, y, x: F.kl_div(o.log_softmax(1), x.softmax(1), reduction="batchmean"),
    "kl_div log_target": lambda o, y, x: (
        F.kl_div(o.log_softmax(1), x.log_softmax(1), reduction="none", log_target=True).sum(1).mean()
    ),
    "soft_margin": lambda o, y, x: F.soft_margin_loss(o[:, 0], signs(y)),
    "hinge_embedding": lambda o, y, x: F.hinge_embedding_loss(o[:, 0], signs(y)),
    "poisson_nll": lambda o, y, x: F.poisson_nll_loss(o, x.exp()),
    "gaussian_nll": lambda o, y, x: F.gaussian_nll_loss(o[:, :2], x[:, :2], o[:, 2:].exp()),
    "multi_margin": lambda o, y, x: F.multi_margin_loss(o, y),
    "multilabel_margin": lambda o, y, x: F.multilabel_margin_loss(
        o, torch.stack([y, y * 0 - 1, y * 0 - 1, y * 0 - 1], 1)
    ),
    "multilabel_soft_margin": lambda o, y, x: F.multilabel_soft_margin_loss(o, (x > 0).float()),
    "cosine_embedding": lambda o, y, x: F.cosine_embedding_loss(o, x, signs(y)),
    "margin_ranking": lambda o, y, x: F.margin_ranking_loss(o[:, 0], o[:, 1], signs(y)),
    "triplet": triplet,
    "triplet distance": lambda o, y, x: F.triplet_margin_with_distance_loss(o, x, x.abs()),
    "ctc": lambda o, y, x: F.ctc_loss(
        o.reshape(-1, 2, 2).transpose(0, 1).log_softmax(2),
        torch.ones(ROWS, 1, dtype=torch.long),
        torch.full((ROWS,), 2),
        torch.ones(ROWS, dtype=torch.long),
    ),
    "softplus": lambda o, y, x: F.softplus(-signs(y) * o[:, 0]).mean(),
    "elu": lambda o, y, x: F.elu(-signs(y) * o[:, 0]).mean(),
    "logsigmoid": lambda o, y, x: -F.logsigmoid(signs(y) * o[:, 0]).mean(),
    **{name: lambda o, y, x, name=name: getattr(F, name)(o).sum(1).mean() for name in ENTRIES},
    "relu6": lambda o, y, x: F.relu6(o).square().sum(1).mean(),
    "prelu": lambda o, y, x: F.prelu(o, torch.tensor([0.3])).sum(1).mean(),
    "threshold": lambda o, y, x: F.threshold(o, 0.1, 2.0).sum(1).mean(),
    "glu": lambda o, y, x: F.glu(o, 1).sum(1).mean(),
    "softmax": lambda o, y, x: (o.softmax(1) * x).sum(1).mean(),
    "log_softmax": lambda o, y, x: (o.log_softmax(-1) * x).sum(1).mean(),
    "softmin": lambda o, y, x: (F.softmin(o, 1) * x).sum(1).mean(),
    "sigmoid tanh exp": lambda o, y, x: (o.sigmoid() + o.tanh() * o.exp()).sum(1).mean(),
    "logs": lambda o, y, x: (o.exp().log1p() + o.abs().add(1).log2()).sum(1).mean(),
    "powers": lambda o, y, x: (o**3 + o.abs().sqrt() + 2.0**o).sum(1).mean(),
    "trigonometry": lambda o, y, x: (o.sin() + o.cos() * o.atan() + o.erf()).sum(1).mean(),
    "clamp": lambda o, y, x: o.clamp(-0.5, 0.5).sum(1).mean(),
    "maximum": lambda o, y, x: torch.maximum(o, x).sum(1).mean(),
    "max with": lambda o, y, x: torch.max(o, x).sum(1).mean(),
    "where": lambda o, y, x: torch.where(x > 0, o, o.square()).sum(1).mean(),
    "masked_fill": lambda o, y, x: o.masked_fill(x > 0, 0.0).exp().sum(1).mean(),
    "lerp addcmul": lambda o, y, x: torch.addcmul(o.lerp(x, 0.3), o, x, value=0.5).sum(1).mean(),
    "nan_to_num": lambda o, y, x: o.nan_to_num().sum(1).mean(),
    "atan2 hypot": lambda o, y, x: (torch.atan2(o, x) + torch.hypot(o, x)).sum(1).mean(),
    "public factor": lambda o, y, x: (o * PUBLIC).exp().sum(1).mean(),
    "sum by len": lambda o, y, x: o.square().sum() / len(o),
    "sum by shape": lambda o, y, x: (o.square().sum() + o.exp().sum()) / o.shape[0],
    "mean of all": lambda o, y, x: o.square().mean(),
    "two means": lambda o, y, x: F.cross_entropy(o, y) + 0.3 * F.mse_loss(o, x),
    "mean by seven": lambda o, y, x: -F.cross_entropy(o, y) / 7,
    "keepdim": lambda o, y, x: (o - o.mean(1, keepdim=True)).square().sum(1).mean(),
    "norm": lambda o, y, x: o.norm(dim=1).mean(),
    "norm one": lambda o, y, x: o.norm(p=1, dim=1).square().mean(),
    "normalize": lambda o, y, x: (F.normalize(o, dim=1) * x).sum(1).mean(),
    "var std": lambda o, y, x: (o.var(1) + o.std(1)).mean(),
    "logsumexp": lambda o, y, x: o.logsumexp(1).mean(),
    "amax amin": lambda o, y, x: (o.amax(1) - o.amin(1)).mean(),
    "max dim": lambda o, y, x: o.max(1).values.mean(),
    "median": lambda o, y, x: o.median(1).values.square().mean(),
    "prod": lambda o, y, x: o.prod(1).mean(),
    "cumsum": lambda o, y, x: o.cumsum(1).square().sum(1).mean(),
    "cumprod": lambda o, y, x: o.cumprod(1).sum(1).mean(),
    "logcumsumexp": lambda o, y, x: o.logcumsumexp(1).sum(1).mean(),
    "sort": lambda o, y, x: (o.sort(1).values * PUBLIC).sum(1).mean(),
    "topk": lambda o, y, x: o.topk(2, 1).values.square().sum(1).mean(),
    "kthvalue": lambda o, y, x: o.kthvalue(2, 1).values.square().mean(),
    "flip roll": lambda o, y, x: (o.flip(1) * o.roll(1, 1)).sum(1).mean(),
    "diff": lambda o, y, x: o.diff(dim=1).square().sum(1).mean(),
    "gather": lambda o, y, x: -o.log_softmax(1).gather(1, y[:, None]).mean(),
    "take_along": lambda o, y, x: o.take_along_dim(x.argsort(1), 1)[:, 0].square().mean(),
    "own places": lambda o, y, x: -o.log_softmax(1)[torch.arange(len(y)), y].mean(),
    "range places": lambda o, y, x: o.square()[range(len(y)), y].mean(),
    "columns by list": lambda o, y, x: o[:, [2, 0]].exp().sum(1).mean(),
    "index_select": lambda o, y, x: o.index_select(1, torch.tensor([1, 3])).exp().sum(1).mean(),
    "table of classes": lambda o, y, x: (PUBLIC.exp()[y] * o.square().sum(1)).mean(),
    "embedding": lambda o, y, x: (o[:, :3] * F.embedding(y, TABLE)).sum(1).exp().mean(),
    "one_hot": lambda o, y, x: (o * F.one_hot(y, WIDTH)).sum(1).exp().mean(),
    "eye": lambda o, y, x: (o * torch.eye(WIDTH)[y]).sum(1).exp().mean(),
    "scatter": one_hot_by_scatter,
    "places written": one_hot_by_places,
    "column written": column_written,
    "outputs written": outputs_written,
    "scatter_add": lambda o, y, x: (
        torch.zeros_like(o).scatter_add(1, y[:, None].expand(-1, 2), o[:, :2]).square().sum(1).mean()
    ),
    "rows in a loop": own_rows_in_a_loop,
    "rows by number": rows_by_number,
    "rows added up": lambda o, y, x: sum(F.cross_entropy(o[i], y[i]) for i in range(len(y))) / len(y),
    "compiled": lambda o, y, x: torch.compile(lambda a, b: (a * b).sum(1).exp().mean(), backend="eager")(
        o, x
    ),
    "checkpointed loss": lambda o, y, x: torch.utils.checkpoint.checkpoint(
        lambda o: F.cross_entropy(o, y), o, use_reentrant=False
    ),
    "matmul": lambda o, y, x: (o @ TABLE).square().sum(1).mean(),
    "linear": lambda o, y, x: F.linear(o, TABLE.T, torch.ones(3)).square().sum(1).mean(),
    "bilinear by einsum": lambda o, y, x: torch.einsum(
        "nd,de,nf,ef->n", o, TABLE, x, torch.ones(3, WIDTH)
    ).mean(),
    "einsum rows": lambda o, y, x: torch.einsum("nd,nd->n", o, x).square().mean(),
    "einsum outer": lambda o, y, x: torch.einsum("nd,ne->nde", o, x).square().sum((1, 2)).mean(),
    "bmm": lambda o, y, x: torch.bmm(o[:, :, None], o[:, None, :]).square().sum((1, 2)).mean(),
    "baddbmm": lambda o, y, x: (
        torch.baddbmm(torch.ones(1, 4, 4), o[:, :, None], x[:, None, :]).square().sum((1, 2)).mean()
    ),
    "addmm": lambda o, y, x: torch.addmm(torch.ones(3), o, TABLE).square().sum(1).mean(),
    "cosine": lambda o, y, x: (1 - F.cosine_similarity(o, x)).mean(),
    "pairwise": lambda o, y, x: F.pairwise_distance(o, x).mean(),
    "cdist public": lambda o, y, x: torch.cdist(o, torch.eye(WIDTH)).square().sum(1).mean(),
    "cat": lambda o, y, x: torch.cat([o, o.square(), torch.ones(len(o), 1)], 1).prod(1).mean(),
    "stack": lambda o, y, x: torch.stack([o, x], 1).prod(1).sum(1).mean(),
    "cat of rows, apart still": lambda o, y, x: torch.cat([o, o.exp()]).square().sum(1).mean(),
    "split": lambda o, y, x: (lambda a, b: (a * b).sum(1).mean())(*o.split(2, 1)),
    "unbind": lambda o, y, x: (lambda a, b, c, d: (a * b + c * d).mean())(*o.unbind(1)),
    "expand repeat": lambda o, y, x: (
        (o[:, None].expand(-1, 3, -1) * x[:, None].repeat(1, 3, 1)).sum((1, 2)).mean()
    ),
    "repeat_interleave": lambda o, y, x: o.repeat_interleave(2, 0).square().sum() / len(o),
    "reshape": lambda o, y, x: o.reshape(len(o), 2, 2).transpose(1, 2).flatten(1).square().sum(1).mean(),
    "flattened": lambda o, y, x: o.reshape(-1).square().mean(),
    "transposed": lambda o, y, x: (o.T * x.T).sum(0).exp().mean(),
    "permuted": lambda o, y, x: o.reshape(len(o), 2, 2).permute(2, 0, 1).square().sum((0, 2)).exp().mean(),
    "time first": time_first,
    "pad": lambda o, y, x: F.pad(o, (1, 2)).square().sum(1).mean(),
    "unfold": lambda o, y, x: o.unfold(1, 2, 1).square().sum((1, 2)).mean(),
    "tril": lambda o, y, x: (o[:, :, None] * x[:, None, :]).tril().sum((1, 2)).exp().mean(),
    "diagonal": lambda o, y, x: (o[:, :, None] * x[:, None, :]).diagonal(dim1=1, dim2=2).sum(1).mean(),
    "diag_embed": lambda o, y, x: (torch.diag_embed(o) @ torch.ones(WIDTH, 2)).square().sum((1, 2)).mean(),
    "conv1d": lambda o, y, x: F.conv1d(o[:, None], KERNEL).square().sum((1, 2)).mean(),
    "avg_pool": lambda o, y, x: F.avg_pool1d(o[:, None], 2).square().sum((1, 2)).mean(),
    "adaptive_pool": lambda o, y, x: F.adaptive_avg_pool1d(o[:, None], 2).square().sum((1, 2)).mean(),
    "layers of images": layers,
    "layer_norm": lambda o, y, x: (F.layer_norm(o, (WIDTH,)) * x).sum(1).mean(),
    "instance_norm": lambda o, y, x: (F.instance_norm(o[:, None]) * x[:, None]).sum((1, 2)).mean(),
    "batch_norm fixed": lambda o, y, x: F.batch_norm(o, torch.zeros(4), torch.ones(4)).square().sum(1).mean(),
    "local_response_norm": lambda o, y, x: (
        F.local_response_norm(o[:, :, None], 2).square().sum((1, 2)).mean()
    ),
    "rms_norm": lambda o, y, x: (F.rms_norm(o, (WIDTH,)) * x).sum(1).mean(),
    "attention": attention,
    "fft": lambda o, y, x: torch.fft.rfft(o, dim=1).abs().square().sum(1).mean(),
    "determinant": lambda o, y, x: torch.linalg.det(o.reshape(-1, 2, 2)).square().mean(),
    "inverse": lambda o, y, x: (
        torch.linalg.inv(o.reshape(-1, 2, 2) + 9 * torch.eye(2)).square().sum((1, 2)).mean()
    ),
    "focal": lambda o, y, x: (lambda c: ((1 - torch.exp(-c)) ** 2 * c).mean())(
        F.cross_entropy(o, y, reduction="none")
    ),
    "distilled": lambda o, y, x: (
        F.kl_div(F.log_softmax(o / 2, 1), F.softmax(x / 2, 1), reduction="batchmean") * 4
    ),
    "detached own": lambda o, y, x: (o.detach().softmax(1) * o).sum(1).mean(),
    "entropy": lambda o, y, x: torch.distributions.Categorical(logits=o).entropy().mean(),
    "log_prob": lambda o, y, x: -torch.distributions.Normal(o[:, 0], o[:, 1].exp()).log_prob(x[:, 0]).mean(),
    "categorical log_prob": lambda o, y, x: -torch.distributions.Categorical(logits=o).log_prob(y).mean(),
    "reinforced": lambda o, y, x: -(o.log_softmax(1).gather(1, y[:, None])[:, 0] * x[:, 0]).mean(),
    "dice by row": dice,
    "tokens by row": tokens,
    "vae": vae,
    "in place": in_place,
    "own function": lambda o, y, x: Doubled.apply(o).sum(1).mean(),
    "checkpointed": lambda o, y, x: torch.utils.checkpoint.checkpoint(
        lambda o: (o * x).sum(1).exp().mean(), o, use_reentrant=False
    ),
    "masked sum": lambda o, y, x: torch.where(y > 0, o.square().sum(1), 0.0).sum() / len(y),
    "mask times": lambda o, y, x: (o.square().sum(1) * (y > 0)).sum() / len(y),
    "picked by a mask": lambda o, y, x: o.square().sum(1)[y > 0].sum() / len(y),
    "quantile loss": lambda o, y, x: torch.max(0.9 * (x - o), -0.1 * (x - o)).sum(1).mean(),
    "logged": lambda o, y, x: (lambda l: (l.item(), str(l), l.tolist(), l)[-1])(F.cross_entropy(o, y)),
}
MIXED = {
    "a target beside a column": lambda o, y, x: ((o[:, :1] - y.float()) ** 2).mean(),
    "MSELoss broadcast": lambda o, y, x: nn.MSELoss()(o[:, :1], y.float()),
    "each against each": lambda o, y, x: F.cross_entropy(o @ o.T, torch.arange(len(o))),
    "contrastive": lambda o, y, x: F.cross_entropy(F.normalize(o) @ F.normalize(x).T, torch.arange(len(o))),
    "centred": lambda o, y, x: F.cross_entropy(o - o.mean(0), y),
    "centred, detached": lambda o, y, x: F.cross_entropy(o - o.detach().mean(0), y),
    "centred targets": lambda o, y, x: ((o - x.mean(0)) ** 2).mean(),
    "standardised advantage": lambda o, y, x: (o[:, 0] * (x[:, 0] - x[:, 0].mean()) / x[:, 0].std()).mean(),
    "the root of a mean": lambda o, y, x: F.cross_entropy(o, y).sqrt(),
    "root of the mean": lambda o, y, x: o.square().mean().sqrt(),
    "log of a mean": lambda o, y, x: o.exp().mean().log(),
    "mean of positive ones": lambda o, y, x: o[o > 0].mean(),
    "softmax over rows": lambda o, y, x: (o.softmax(0) * x).sum(1).mean(),
    "flipped": lambda o, y, x: (o * o.flip(0)).sum(1).mean(),
    "rolled": lambda o, y, x: (o * o.roll(1, 0)).sum(1).mean(),
    "shuffled": lambda o, y, x: (o * o[torch.arange(ROWS).roll(1)]).sum(1).mean(),
    "shuffled by index_select": lambda o, y, x: (
        (o * x.index_select(0, torch.arange(ROWS).roll(2))).sum(1).mean()
    ),
    "mixup targets": lambda o, y, x: F.cross_entropy(o, y[torch.arange(ROWS).roll(1)]),
    "mixup": lambda o, y, x: (o * (0.5 * x + 0.5 * x.flip(0))).sum(1).mean(),
    "the first row": lambda o, y, x: (o + o[:1]).square().sum(1).mean(),
    "pairs": lambda o, y, x: (o[:, None] - o[None]).square().sum((1, 2)).mean(),
    "pdist": lambda o, y, x: torch.pdist(o).mean(),
    "cdist": lambda o, y, x: torch.cdist(o, x).mean(),
    "to pieces": lambda o, y, x: o.reshape(ROWS // 2, 8).prod(1).mean(),
    "transposed to rows": lambda o, y, x: o.T.reshape(ROWS, 4).prod(1).mean(),
    "batch norm": lambda o, y, x: (F.batch_norm(o, None, None, training=True) * x).sum(1).mean(),
    "norm of all": lambda o, y, x: (o / o.norm()).sum(1).mean(),
    "product of means": lambda o, y, x: o.mean() * o.exp().mean(),
    "token mean": lambda o, y, x: (F.cross_entropy(o, y, reduction="none") * (y > 0)).sum() / (y > 0).sum(),
    "weights over their sum": lambda o, y, x: (o[:, 0].exp() * x[:, 0].exp() / x[:, 0].exp().sum()).sum(),
    "the largest": lambda o, y, x: o.max(),
    "logsumexp of all": lambda o, y, x: o.logsumexp((0, 1)),
    "variance over rows": lambda o, y, x: o.var(0).sum(),
    "cumsum over rows": lambda o, y, x: o.cumsum(0).square().mean(),
    "sort over rows": lambda o, y, x: (o.sort(0).values * x).sum(1).mean(),
    "sorted for AUC": lambda o, y, x: torch.relu(1 - (o[:, 0][:, None] - o[:, 0][None, :])).mean(),
    "weighted by a detached mean": lambda o, y, x: (o * o.detach().mean(0)).sum(1).mean(),
    "gram": lambda o, y, x: (o.T @ o).square().sum(),
    "einsum over rows": lambda o, y, x: torch.einsum("nd,md->nm", o, o).square().mean(),
    "gather over rows": lambda o, y, x: (o * o.gather(0, y[:, None].expand(-1, 4))).sum(1).mean(),
    "places of others": lambda o, y, x: (o * x[y]).sum(1).mean(),
    "no row to the first": lambda o, y, x: (o * written(o, x)).sum(1).mean(),
    "rows written by hand": written_by_hand,
    "written one row on": one_row_on,
    "written in the order of a mask": in_order_of_a_mask,
    "in place": lambda o, y, x: (o * 1).sub_(o.detach().mean(0)).square().sum(1).mean(),
    "own function": lambda o, y, x: Crossed.apply(o).sum(1).mean(),
    "two rows of a loop": lambda o, y, x: torch.stack([(o[i] * o[i - 1]).sum() for i in range(ROWS)]).mean(),
    "compiled": lambda o, y, x: torch.compile(lambda a: (a - a.mean(0)).square().mean(), backend="eager")(o),
    "checkpointed": lambda o, y, x: torch.utils.checkpoint.checkpoint(
        lambda o: (o - o.mean(0)).square().mean(), o, use_reentrant=False
    ),
    "rows added up twice": lambda o, y, x: sum((o[i] * o[i - 1]).sum() for i in range(ROWS)) / ROWS,
    "list of numbers": lambda o, y, x: (o * torch.stack([x[0].sum()] * ROWS)[:, None]).sum(1).mean(),
    "dice of the batch": lambda o, y, x: (
        1 - 2 * (o.sigmoid() * (x > 0)).sum() / (o.sigmoid().sum() + (x > 0).sum())
    ),
    "cox": lambda o, y, x: -(o[:, 0] - o[:, 0].logcumsumexp(0)).mean(),
    "centres": lambda o, y, x: (o - torch.zeros(4, 4).index_add(0, y, x)[y]).square().sum(1).mean(),
    "conv over rows": lambda o, y, x: F.conv1d(o.T[:, None], KERNEL).square().mean(),
    "layer norm over rows": lambda o, y, x: (F.layer_norm(o, (ROWS, WIDTH)) * x).sum(1).mean(),
    "pool over rows": lambda o, y, x: F.avg_pool1d(o.T[None], 2).square().mean(),
    "attention over rows": lambda o, y, x: (
        F.scaled_dot_product_attention(o[None], x[None], x[None]).square().mean()
    ),
    "renorm over rows": lambda o, y, x: (torch.renorm(o, 2, 1, 0.1) * x).mean(),
    "distances over rows": lambda o, y, x: (
        torch.cdist(o.T, torch.linspace(-1, 1, ROWS * ROWS).reshape(ROWS, ROWS)).T * x
    ).mean(),
    "margins over rows": lambda o, y, x: F.multi_margin_loss(o[:, 0], torch.tensor(2)),
    "fold of rows": lambda o, y, x: F.fold(o[:, :2], (3, 1), (2, 1)).square().mean(),
    "unfold of rows": lambda o, y, x: F.unfold(o.reshape(ROWS, 2, 2), 2).view(4, ROWS).sum(0).square().mean(),
    "pixels of rows": lambda o, y, x: (
        F.pixel_unshuffle(o.reshape(ROWS, 2, 2), 2).view(4, ROWS).sum(0).square().mean()
    ),
    "diagonals of rows": lambda o, y, x: (
        (o.T[:, :, None] * torch.ones(4)).diagonal(dim1=0, dim2=2) * x.flip(0)
    ).mean(),
    "rows on two axes": lambda o, y, x: o.reshape(2, ROWS // 2, WIDTH).sum(0).square().mean(),
    "strided": lambda o, y, x: (o * x.as_strided((ROWS, WIDTH), (1, 2))).sum(1).mean(),
    "barlow": lambda o, y, x: ((o / o.norm(dim=0)).T @ (x / x.norm(dim=0))).square().sum(),
    "unique counts": lambda o, y, x: (o.sum(1) * y.unique(return_counts=True)[1].max()).exp().mean(),
    "bincount weights": lambda o, y, x: (
        F.cross_entropy(o, y, reduction="none") / y.bincount(minlength=4)[y]
    ).sum(),
}


def written(o, x):
    w = o.detach().clone()
    w[1:] = x[0]
    return w


#: Means that torch divides by what other rows have, and what is taken in their place.
DIVIDED = {
    "class weights": (
        lambda o, y, x: F.cross_entropy(o, y, weight=PUBLIC.exp()),
        lambda o, y, x: F.cross_entropy(o, y, weight=PUBLIC.exp(), reduction="none").mean(),
    ),
    "ignored targets": (
        lambda o, y, x: nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)(o, y),
        lambda o, y, x: F.cross_entropy(o, y, ignore_index=0, label_smoothing=0.1, reduction="none").mean(),
    ),
    "weights, smoothed": (
        lambda o, y, x: F.cross_entropy(o, y, PUBLIC.exp(), label_smoothing=0.2),
        lambda o, y, x: F.cross_entropy(o, y, PUBLIC.exp(), label_smoothing=0.2, reduction="none").mean(),
    ),
    "nll ignored": (
        lambda o, y, x: F.nll_loss(o.log_softmax(1), y, ignore_index=1),
        lambda o, y, x: (-o.log_softmax(1).gather(1, y[:, None])[:, 0] * (y != 1)).mean(),
    ),
    "below functions": (
        lambda o, y, x: torch.ops.aten.cross_entropy_loss(o, y, PUBLIC.exp(), 1, 2),
        lambda o, y, x: F.cross_entropy(o, y, PUBLIC.exp(), ignore_index=2, reduction="none").mean(),
    ),
    "the default ignored label": (
        lambda o, y, x: F.cross_entropy(o, torch.where(y == 0, -100, y)),
        lambda o, y, x: (F.cross_entropy(o, y, reduction="none") * (y != 0)).mean(),
    ),
}
