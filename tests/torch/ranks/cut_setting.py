"""Models that fully_shard cuts up, for the tests of this room."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from anechoic.strategies import BLT
from tests.torch.ranks.setting import STEPS, exact
from tests.torch.setting import FEATURES

BLOCKS = 3


class Adapter(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter(0.3 * torch.randn(inner.in_features, 2))
        self.b = nn.Parameter(0.3 * torch.randn(2, inner.out_features))

    def forward(self, x):
        return self.inner(x) + x @ self.a @ self.b


class Blocky(nn.Module):
    """Blocks in a row, whose weights are shared by nobody; adapters and the head are trained, or everything.

    Args:
        dropout: of the blocks.
        way: "": straight; "decides": a block is skipped by the data of a row; "loops": vmap cannot run it;
            "changes": outputs of blocks are changed in place; "again": the first block runs twice.
        every: whether all weights are trained.
        wide: inner width of a block.
        tied: whether the two layers of a block have one weight; for a width of FEATURES.
    """

    def __init__(self, *, dropout=0.0, way="", every=False, wide=7, tied=False):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(FEATURES, wide), nn.Tanh(), nn.Dropout(dropout), nn.Linear(wide, FEATURES)
                )
                for _ in range(BLOCKS)
            )
            self.norm = nn.LayerNorm(FEATURES)
            self.head = nn.Linear(FEATURES, 2)
            if tied:
                for block in self.blocks:
                    block[3].weight = block[0].weight
            self.requires_grad_(every)
            if not every:
                for block in self.blocks:
                    block[3] = Adapter(block[3])
        self.head.requires_grad_()
        self.way = way

    def forward(self, x):
        blocks = [*self.blocks, self.blocks[0]] if self.way == "again" else self.blocks
        for number, block in enumerate(blocks):
            if self.way == "decides" and number == 1 and bool((x.sum() > 0).all()):
                continue
            made = block(x)
            if self.way == "loops":
                made = torch.from_numpy(made.detach().numpy()) * 0 + made
            if self.way == "changes":
                made.mul_(0.9)
            x = x + made
        return self.head(self.norm(x))


def cut(model, *, trained=False, how=fully_shard, mesh=None, **options):
    """The model, cut up over the ranks there are, and its trained weights too where they are not left out."""
    if not dist.is_initialized():
        return model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if mesh is None else mesh
    kept = set() if trained else {p for p in model.parameters() if p.requires_grad}
    for part in (*model.blocks, model):
        how(part, mesh=mesh, ignored_params=kept, **options)
    return model


def trained_weights(model):
    """The trained weights, whole, in a row."""
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.detach().reshape(-1) for p in found]).numpy()


def with_memory():
    """A mechanism whose noise follows from that of earlier steps."""
    return replace(exact("fixed"), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5]))


def sgd(parameters):
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=0.01)
