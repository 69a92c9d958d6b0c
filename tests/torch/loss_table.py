"""Functions of torch in losses whose rows are apart: found by calling them, and counted in docs/training.md.

Run `python -m tests.torch.loss_table` to write the paragraph anew.
"""

import warnings
from pathlib import Path
from textwrap import wrap

import torch
import torch.nn.functional as F

from tests.torch.label_programs import ROWS
from tests.torch.test_labels import depends, numbers, verdict

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
BEGIN, END = "<!-- functions -->", "<!-- end of functions -->"
#: What a loss of torch.nn.functional is called with, where (outputs, numbers) is not it.
GIVEN = {
    "cross_entropy": "o, y",
    "nll_loss": "o.log_softmax(1), y",
    "multi_margin_loss": "o, y",
    "multilabel_margin_loss": "o, y[:, None].expand(-1, 4).contiguous()",
    "multilabel_soft_margin_loss": "o, (x > 0).float()",
    "soft_margin_loss": "o, x.sign()",
    "hinge_embedding_loss": "o, x.sign()",
    "binary_cross_entropy": "o.sigmoid(), x.sigmoid()",
    "binary_cross_entropy_with_logits": "o, x.sigmoid(), pos_weight=torch.ones(4) * 2",
    "kl_div": "o.log_softmax(1), x.softmax(1), reduction='batchmean'",
    "gaussian_nll_loss": "o, x, o.exp()",
    "poisson_nll_loss": "o, x.exp(), full=True",
    "cosine_embedding_loss": "o, x, 2.0 * (y % 2) - 1",
    "margin_ranking_loss": "o[:, 0], o[:, 1], 2.0 * (y % 2) - 1",
    "triplet_margin_loss": "o, x, x.abs()",
    "triplet_margin_with_distance_loss": "o, x, x.abs(), distance_function=lambda a, b: (a - b).abs().sum(1)",
    "ctc_loss": "o.log_softmax(1)[None].repeat(3, 1, 1), y[:, None] % 3 + 1, [3] * 6, [1] * 6",
    "cosine_similarity": "o, x",
    "pairwise_distance": "o, x",
    "linear": "o, torch.ones(3, 4)",
    "bilinear": "o, x, torch.ones(2, 4, 4)",
    "prelu": "o, torch.tensor([0.2])",
    "embedding_bag": "y[:, None], torch.ones(4, 3), per_sample_weights=o[:, :1], mode='sum'",
    "batch_norm": "o, torch.zeros(4), torch.ones(4)",
    "layer_norm": "o, (4,)",
    "rms_norm": "o, (4,)",
    "normalize": "o, dim=1",
    "threshold": "o, 0.1, 0.0",
    "pad": "o, (1, 2)",
    "glu": "o, 1",
    "one_hot": None,
    "embedding": None,  # of places, which have no gradient
    "pdist": None,  # distances of rows
    "upsample_nearest": None,
    "upsample_bilinear": None,  # interpolate
    "conv_tbc": None,
    "multi_head_attention_forward": None,  # a layer's, which has weights
    "linear_cross_entropy": None,  # the same, not yet stable in torch
    "native_channel_shuffle": None,
    "grouped_mm": None,
    "scaled_mm": None,
    "scaled_grouped_mm": None,  # of other types, on GPUs
    "dropout": "o, 0.5",
    "softmax": "o, 1",
    "log_softmax": "o, 1",
    "softmin": "o, 1",
    "gumbel_softmax": "o, dim=1",
    "group_norm": "o, 2",
    "local_response_norm": "o[:, None], 2",
    "instance_norm": "o[:, None]",
    "scaled_dot_product_attention": "o[:, None, :, None], x[:, None, :, None], x[:, None, :, None]",
    "interpolate": "i, scale_factor=2.0, mode='bilinear'",
    "upsample": "i, scale_factor=2.0",
    "grid_sample": "i, x.reshape(6, 1, 2, 2).tanh(), align_corners=False",
    "affine_grid": "F.pad(o, (1, 1)).reshape(6, 2, 3), (6, 1, 2, 2), align_corners=False",
    "pixel_shuffle": "o.reshape(6, 4, 1, 1), 2",
    "pixel_unshuffle": "i, 2",
    "channel_shuffle": "o.reshape(6, 4, 1, 1), 2",
    "unfold": "i, 2",
    "fold": "o[:, :, None], 2, 2",
    **{
        f"conv{d}d": f"o.reshape(6, 1, 4{', 1' * (d - 1)}), torch.ones(2, 1, 2{', 1' * (d - 1)})"
        for d in (1, 2, 3)
    },
    **{
        f"conv_transpose{d}d": f"o.reshape(6, 1, 4{', 1' * (d - 1)}), torch.ones(1, 2, 2{', 1' * (d - 1)})"
        for d in (1, 2, 3)
    },
}
_IMAGES = {1: "o[:, None]", 2: "i", 3: "i.repeat(1, 2, 1, 1)[:, None]"}
for _d, _i in _IMAGES.items():
    for _name in ("avg_pool", "max_pool"):
        GIVEN[f"{_name}{_d}d"] = f"{_i}, 2"
    GIVEN[f"max_pool{_d}d_with_indices"] = f"{_i}, 2"
    GIVEN[f"lp_pool{_d}d"] = f"{_i}, 2, 2"
    GIVEN[f"max_unpool{_d}d"] = f"*F.max_pool{_d}d({_i}, 2, return_indices=True), 2"
    for _name in ("adaptive_avg_pool", "adaptive_max_pool"):
        GIVEN[f"{_name}{_d}d"] = f"{_i}, 1"
    GIVEN[f"adaptive_max_pool{_d}d_with_indices"] = f"{_i}, 1"
    GIVEN[f"dropout{_d}d"] = _i
    if _d > 1:
        GIVEN[f"fractional_max_pool{_d}d"] = GIVEN[f"fractional_max_pool{_d}d_with_indices"] = f"{_i}, 1, 1"
#: How other functions are called: the first way that runs.
WAYS = (  # noqa: SIM905
    "o, dim=1 | o, 1 | o | p | o, x | p, x.abs() + 1 | o, 2, 1 | m | m, m | m, v | o, 1, 0 | 1, o | "
    "o, [1] | m, x.reshape(6, 2, 2) | o, x, x | o, 0.5 | o, 0.5, 1 | o > 0, o, x | [o, x], 1 | [o, x] "
    "| q | o, 1, y[:, None] | o, 1, torch.tensor([0, 2]) | o, x > 0, 0.0 | o, (6, 2, 2) | o, 1, (2, "
    "2) | o, 1, y[:, None], x[:, :1] | o, 1, 1, 2 | o, (0, 1) | o, torch.ones(4, 3) | o, "
    "torch.ones(4) | torch.ones(3), o, torch.ones(4, 3) | torch.ones(6), o, torch.ones(4) | "
    "'nd,ne->nde', o, x | torch.ones(6, 2, 2), m, m | o[:, None], (6, 3, 4) | m, 2 | o, "
    "torch.tensor([0.2]) | o, (1, 2) | o, [4] | o[:, None], torch.ones(2, 1, 2) | o, 0, 1 | o, 1, "
    "torch.tensor([0, 2]), x[:, :2] | [m, m, m]"
).split(" | ")
#: Functions whose rows are apart in what is called here, which are refused all the same.
REFUSED = {
    "F.embedding_bag", "torch.block_diag",
    "torch.diagonal_scatter", "torch.slice_scatter", "torch.slice_inverse",
    "torch.flipud", "torch.msort", "torch.pca_lowrank", "torch.rot90",
}  # fmt: skip
RANDOM = (
    "dropout",
    "alpha",
    "rrelu",
    "gumbel",
    "bernoulli",
    "fractional",
    "normal",
    "poisson",
    "multinomial",
)


def reduced(made, whole=False):
    """A loss of what a function made: its first tensor with rows and a gradient; a number if `whole`."""
    parts = [made] if isinstance(made, torch.Tensor) else made if isinstance(made, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, torch.Tensor) and part.requires_grad:
            part = part.abs() if part.is_complex() else part
            if (whole and not part.dim()) or (part.dim() and part.shape[0] == ROWS):
                return part.flatten(1).square().sum(1).mean() if part.dim() > 1 else part.mean()
    raise TypeError("no rows")


def loss_of(function, given):
    """The loss as a program of (outputs, targets, numbers)."""

    def program(o, y, x):
        names = {"o": o, "y": y, "x": x, "F": F, "torch": torch, "p": o.sigmoid() * 0.9 + 0.05}
        names |= {"i": o.reshape(ROWS, 1, 2, 2), "v": x.reshape(ROWS, 2, 2)[:, :, :1]}
        square = o.reshape(ROWS, 2, 2)
        names |= {"m": square @ square.transpose(1, 2) + torch.eye(2), "q": torch.complex(o, x)}
        names |= {"f": function}
        return reduced(eval(f"f({given})", names), function in vars(F).values())

    return program


def functions():
    """(shown name, function, ways to call it) of all that may be differentiable."""
    known = torch.overrides.get_testing_overrides()
    for name, function in sorted(vars(F).items()):
        own = getattr(function, "__module__", "") in ("torch.nn.functional", "torch._jit_internal")
        if callable(function) and not name.startswith("_") and (own or function in known):
            given = GIVEN.get(name, "o")
            told = name[-1] == "_" or name.startswith(("boolean_", "handle_", "has_", "assert_"))
            if not (told or given is None or isinstance(function, type)):
                yield f"F.{name}", function, (GIVEN.get(name, "o, x") if "loss" in name else given,)
    for shown, space in (("torch", torch), ("torch.linalg", torch.linalg), ("torch.special", torch.special),
                         ("torch.fft", torch.fft)):  # fmt: skip
        for name in sorted(dir(space)):
            function = getattr(space, name)
            if not name.startswith("_") and name[-1] != "_" and callable(function) and function in known:
                yield f"{shown}.{name}", function, WAYS


def judged():
    """{name: (call, why it is refused, or "")} of functions whose rows are apart as they are called."""
    found = {}
    for shown, function, ways in functions():
        random = any(word in shown for word in RANDOM)
        for given in ways:
            program, drawn = loss_of(function, given), numbers(0)
            try:
                if random:
                    program(drawn[0].clone().requires_grad_(), *drawn[1:]).backward()
                elif depends(program, *drawn, seeds=(3,)):
                    continue
            except Exception:
                continue
            try:
                why = verdict(program, *drawn)[0]
            except Exception as error:
                why = f"raised {error}"
            if shown not in found or not why:
                found[shown] = given, why
            if not why:
                break
    return found


def page(found):
    """What docs/training.md says of them."""
    spaces = {"F": "torch.nn.functional"} | {
        s: s for s in ("torch", "torch.linalg", "torch.special", "torch.fft")
    }
    accepted = [name.rpartition(".")[0] for name, (_, why) in found.items() if not why]
    counts = [f"{accepted.count(space)} of `{name}`" for space, name in spaces.items()]
    told = ", ".join(f"`{name}`" for name in sorted(REFUSED))
    lines = wrap(
        f"Any that keeps rows apart. So called, {len(accepted)} functions of torch are accepted:"
        f" {', '.join(counts)}. Refused all the same are {told}, and those that end in `_copy`. One in"
        " which rows meet is refused at `step()`, by name, if it reaches the gradient. (`python -m"
        " tests.torch.loss_table`)",
        118,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([BEGIN, *lines, END])


def written(text, found):
    """`text` with the paragraph in the place of the one between the marks."""
    head, _, rest = text.partition(BEGIN)
    return head + page(found) + rest.partition(END)[2]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PAGE.write_text(written(PAGE.read_text("utf-8"), judged()), "utf-8")
