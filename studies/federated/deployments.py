"""Published federated settings, planned again: predicted errors beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anechoic.federated import MinSeparation, plan_rounds
from anechoic.federated.planning import BYTES
from anechoic.losses.dispatch import loss
from anechoic.losses.norms import LossNorm
from anechoic.workloads import prefix_sum
from studies.comparison.study import KINDS, Kind
from studies.federated.arms import NOISE


@dataclass(frozen=True)
class Deployment:
    """A setting of which somebody printed losses.

    Args:
        source: where.
        rounds, separation, participations: n, b, k.
        scale: what printed losses are multiplied by there; 1 for losses themselves.
        printed: by kind of noise and of loss, to as many decimals as in print.
    """

    source: str
    rounds: int
    separation: int
    participations: int
    scale: float = 1.0
    printed: Mapping[tuple[Kind, LossNorm], float] = field(default_factory=dict)


#: The monograph refers to them (Section 3.1, Example 3.1; Section 4.4) and prints no table of its own.
DEPLOYMENTS = (
    Deployment(
        "arXiv 2408.08868, federated keyboards",  # its RMS and max headers are exchanged
        2052,
        342,
        6,
        printed={
            ("independent", "rms"): 78.48,
            ("tree", "rms"): 12.47,
            ("blt", "rms"): 9.33,
            ("banded", "rms"): 8.60,
            ("blt", "max"): 10.79,
        },
    ),
    Deployment(
        "arXiv 2601.22334, σ = 0.6003",
        3900,
        390,
        10,
        scale=0.6003,
        printed={("independent", "rms"): 83.85, ("blt", "rms"): 8.14, ("banded", "rms"): 7.77},
    ),
    Deployment("min-sep 400, no printed losses", 2000, 400, 5),
)


LEGEND = (
    "n: rounds. b: rounds from one participation of a client to its next, at least. k: participations of one"
    " client, at most. RMS, max: error of the running sums of updates over all rounds, root mean square and"
    " largest, as standard deviations at noise multiplier 1 (times σ where a setting names one); each"
    " strategy is optimised for the loss of its column. printed: what the source has, where it has it."
    " banded: here Toeplitz, of at most b bands, with columns scaled; the printed 8.60 is of a banded"
    " matrix whose columns are all free (BandMF), a larger class, which takes minutes"
    " (anechoic.optimize.banded); the printed 7.77 is of another optimisation, above ours."
)


@dataclass(frozen=True)
class Predicted:
    """One loss of one kind of noise in one setting, normalised: at noise multiplier 1, times the scale.

    Attributes:
        deployment: the setting.
        kind: of noise; its strategy is optimised for this loss.
        loss: "rms" or "max" over the rounds.
        found: here.
        printed: there, or None.
    """

    deployment: Deployment
    kind: Kind
    loss: LossNorm
    found: float
    printed: float | None


def predicted(
    deployments: Iterable[Deployment] = DEPLOYMENTS,
    *,
    kinds: Iterable[Kind] = tuple(NOISE),
    losses: Iterable[Literal["rms", "max"]] = ("rms", "max"),
) -> list[Predicted]:
    """Losses of what `plan_rounds` plans for each setting, kind of noise and kind of loss."""
    rows = []
    for deployment in deployments:
        policy = MinSeparation(deployment.separation, deployment.participations)
        for kind in kinds:
            for which in losses:
                planned = plan_rounds(
                    rounds=deployment.rounds,
                    clients=1000 * deployment.rounds,  # neither it nor epsilon changes a loss
                    clients_per_round=1000,
                    policy=policy,
                    epsilon=8.0,
                    dimension=1,
                    mechanism=NOISE[kind],
                    keep="all" if which == "rms" else "any",
                    memory_budget=BYTES * deployment.separation,
                )
                found = loss(prefix_sum(deployment.rounds), planned.strategy, policy.participation, which)
                printed = deployment.printed.get((kind, which))
                rows.append(Predicted(deployment, kind, which, found * deployment.scale, printed))
    return rows


def deployments_text() -> str:
    """The table in Markdown, which reads as text too."""
    lines = [
        "| setting | n | b | k | noise | RMS | printed | max | printed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = predicted()
    for rms, most in zip(rows[::2], rows[1::2], strict=True):
        one = rms.deployment
        cells = [one.source, one.rounds, one.separation, one.participations, KINDS[rms.kind]]
        for row in (rms, most):
            cells += [f"{row.found:.2f}", "" if row.printed is None else f"{row.printed:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", LEGEND])
