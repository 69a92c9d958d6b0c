"""Clipping by clipping= and max_grad_norm= of make_private: which parameters share a norm, and how large."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, get_args

from torch import nn

from anechoic._validate import one_of, positive_float
from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.sources.clipping import ClipParts, Clipping, GridClipping

#: "flat" and "per_layer" are Opacus's words.
ClippingName = Literal["flat", "per_layer", "per_group", "automatic"]
MaxGradNorm = float | Sequence[float] | Mapping[str, float] | None
#: That of automatic clipping, in units of gradients: the paper's, who found that it need not be tuned.
GAMMA = 0.01


def flat_norm(max_grad_norm: MaxGradNorm) -> float | None:
    """Return the norm of a contribution over all parameters: the root of the sum of squares, rounded up."""
    if max_grad_norm is None or isinstance(max_grad_norm, Real):
        return max_grad_norm  # type: ignore[return-value] # a type checker takes no float for Real
    norms = _listed(max_grad_norm)
    found = math.hypot(*norms)
    while Fraction(found) ** 2 < sum(Fraction(norm) ** 2 for norm in norms):
        found = math.nextafter(found, math.inf)
    return found


def _listed(max_grad_norm: Any) -> list[float]:
    given = max_grad_norm.values() if isinstance(max_grad_norm, Mapping) else max_grad_norm
    return [positive_float("a norm of max_grad_norm", norm) for norm in given]


def names_of(module: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    """What the parameters are called in `module.named_parameters()`."""
    names = {id(p): name for name, p in module.named_parameters()}
    return [names[id(p)] for p in parameters]


def clipping_of(
    clipping: str, max_grad_norm: MaxGradNorm, names: list[str], mechanism: Mechanism
) -> Clipping:
    """Return the clipping of contributions: as floats, or as integers on the mechanism's grid.

    The mechanism's clip norm is the bound over all parameters together; `names` are in the order of sums.
    """
    norms, places = places_of(clipping, max_grad_norm, names)
    parts = ClipParts(fitted(norms, mechanism.clip_norm), places) if len(norms) > 1 else None
    gamma = GAMMA if clipping == "automatic" else None
    if mechanism.grid_bits is None:
        return Clipping(mechanism.clip_norm, parts=parts, gamma=gamma)
    return GridClipping(mechanism.clip_norm, mechanism.grid_bits, parts=parts, gamma=gamma)


def places_of(
    clipping: str, max_grad_norm: MaxGradNorm, names: list[str]
) -> tuple[list[float], tuple[int, ...]]:
    """Return (norms of the parts, to scale; the part of each parameter), of a split that fits the `names`."""
    if clipping == "adaptive":
        raise UnsupportedError(
            "clipping='adaptive' moves the clip norm by statistics of the batches, which cost privacy that"
            " nobody accounts for. Write clipping='automatic', which needs no tuned norm, or clipping='flat'."
        )
    one_of("clipping", clipping, get_args(ClippingName))
    given = f"clipping={clipping!r}, max_grad_norm={max_grad_norm!r}"
    if isinstance(max_grad_norm, Mapping):
        patterns = list(max_grad_norm)
        sound = bool(patterns) and all(isinstance(pattern, str) for pattern in patterns)
        first = [next((i for i, p in enumerate(patterns) if fnmatchcase(n, p)), -1) for n in names if sound]
        unused = [pattern for i, pattern in enumerate(patterns) if i not in first]
        fault = ""
        if clipping not in ("per_group", "automatic"):
            fault = "norms by names of parameters are those of clipping='per_group'"
        elif not sound:
            fault = "it must map patterns of parameters' names to norms: {'*': 1.0}"
        elif -1 in first:
            fault = f"it has no pattern for {names[first.index(-1)]!r}. Add '*', for all others, at the end"
        elif unused:
            fault = (
                f"no trainable parameter is left for {unused[0]!r} (each takes the first pattern that it"
                f" matches; they are {', '.join(names[:5])}, …): leave it out"
            )
        if fault:
            raise ValueError(f"{given}: {fault}.")
        return _listed(max_grad_norm), tuple(first)
    if isinstance(max_grad_norm, Sequence) and not isinstance(max_grad_norm, str):  # type: ignore[unreachable]
        if clipping not in ("per_layer", "automatic"):
            raise ValueError(f"{given}: a list of norms is that of clipping='per_layer'.")
        if len(max_grad_norm) != len(names):
            raise ValueError(
                f"max_grad_norm has {len(max_grad_norm)} norms, and the optimizer has {len(names)} trainable"
                f" parameters ({', '.join(names[:5])}, …): give one for each, in their order; or one number,"
                " of which each has an equal part."
            )
        return _listed(max_grad_norm), tuple(range(len(names)))
    if clipping == "per_group":
        raise ValueError(
            f"{given}: give norms by patterns of names, such as"
            f" max_grad_norm={{'embedding.*': 0.5, '*': 1.0}}."
        )
    if max_grad_norm is not None:
        positive_float("max_grad_norm", max_grad_norm)
    if clipping == "per_layer":
        return [1.0] * len(names), tuple(range(len(names)))
    return [1.0], (0,) * len(names)


def fitted(norms: list[float], clip_norm: float) -> tuple[float, ...]:
    """`norms` times the factor by which their squares add up to that of `clip_norm`, and not to more."""
    scale, whole = clip_norm / math.hypot(*norms), Fraction(clip_norm) ** 2
    while True:
        found = tuple(norm * scale for norm in norms)
        if sum(Fraction(norm) ** 2 for norm in found) <= whole:
            return found
        scale *= 1 - 2.0**-50
