"""The report of the demo: what the noise cost and bought, why, and what is guaranteed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.statement_text import KEYS
from anechoic.plots.curves import Axis, Level, Line, line_figure
from anechoic.plots.mechanism import mechanism_figure
from anechoic.plots.style import as_image
from anechoic.statement.page import render_page
from anechoic.statement.statement import Statement, statement_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

HEAD = ("ε", "ε, rate chosen", "independent", "planned", "gain", "DP-SGD, if drawn", "not private")
ARMS = {"independent": "independent noise", "planned": "planned mechanism"}
IF_DRAWN = (
    "“DP-SGD, if drawn” has the noise that DP-SGD would need at this ε if batches were drawn at random and in"
    " secret from all flights (Poisson). In time order they cannot be: a batch of January would need flights"
    " of December. So nothing guarantees that ε here, and it is shown for what the order costs."
)
TUNING = (
    "AUC of predictions that were made before training on them. Each arm takes its own best learning rate, by"
    " the mean over the seeds. That choice costs privacy: the larger ε is what anechoic.select needs for it"
    " with the same noise, as many runs in the mean as there are rates, and a score on public data, which the"
    " AUC here is not."
)
NOT_COVERED = (
    "The AUC is computed from the private data and published: each figure is one more look at these data.",
    "The noise keys follow from the seeds, so that the figures can be reproduced. A run that protects anyone"
    " passes no keys, and the engine draws them from the operating system.",
    "Several runs on the same data add up: each statement is that of one run.",
)
#: In the place of the duty `KEYS`, in the statements of these runs.
SEEDED = (
    "keys follow from the seeds: in this demo, so that its figures can be reproduced. Whoever knows the seeds"
    " can take the noise off. The statement is that of a run whose keys come from the operating system, stay"
    " secret, and are used once"
)


def cells(record: Record, row: Record) -> tuple[str, ...]:
    """Return one line of the table, an epsilon, below `HEAD`; its own epsilon is rounded up."""
    several = len(record["seeds"]) > 1

    def reached(mean: float, error: float, form: str = ".4f") -> str:
        shown = f"{mean:{form}}" + (f" ± {error:.4f}" if several else "")
        return shown.replace("-", "−")

    return (
        f"{row['epsilon']:g}",
        f"{math.ceil(1000 * row['chosen']) / 1000:g}",
        *(reached(row[kind]["mean"], row[kind]["error"]) for kind in ARMS),
        reached(row["gain"], row["gain_error"], "+.4f"),
        reached(row["drawn"]["mean"], row["drawn"]["error"]),
        f"{record['clipped']['mean']:.4f}",
    )


def headline(record: Record) -> str:
    """Return the result at the middle epsilon in one sentence."""
    row = record["rows"][len(record["rows"]) // 2]
    return (
        f"At ε = {row['epsilon']:g}, correlated noise reaches AUC {row['planned']['mean']:.3f} where"
        f" independent noise reaches {row['independent']['mean']:.3f}; the same training without noise"
        f" reaches {record['clipped']['mean']:.3f}."
    )


def draw_utility(record: Record) -> tuple[Figure, str]:
    """Draw the AUC against epsilon, and what is reached without noise; returns the words for it too."""
    rows = record["rows"]
    epsilons = [row["epsilon"] for row in rows]
    roles = {kind: (kind, label) for kind, label in ARMS.items()}
    roles["drawn"] = ("damped", "DP-SGD, if drawn")
    lines = [
        Line(label, role, epsilons, [r[kind]["mean"] for r in rows], [r[kind]["error"] for r in rows])
        for kind, (role, label) in roles.items()
    ]
    levels = [
        Level("not private", "clipped", record["clipped"]["mean"]),
        Level("not clipped", "plain", record["plain"]["mean"]),
    ]
    words = f"AUC against epsilon for {record['flights']:,} flights, all with the same order of batches"
    x = Axis(f"ε (δ = {record['delta']:g})", log=True, ticks=epsilons)
    return line_figure(lines, x=x, y=Axis("AUC"), levels=levels, title=words), words


def report_page(record: Record, mechanisms: Mapping[str, Mechanism]) -> str:
    """Return the report as one HTML document that loads nothing.

    Args:
        record: as `demo` makes it, and results.json holds it.
        mechanisms: those of the private arms, by the arm's name.
    """
    middle = record["rows"][len(record["rows"]) // 2]["epsilon"]
    planned = mechanisms[f"planned-fixed-eps{middle:g}"]
    return render_page(
        "demo.html",
        title=headline(record),
        record=record,
        table=(HEAD, [cells(record, row) for row in record["rows"]]),
        utility=as_image(*draw_utility(record)),
        tuning=TUNING,
        if_drawn=IF_DRAWN,
        middle=middle,
        noise=as_image(mechanism_figure(planned), f"Noise of the planned mechanism at ε = {middle:g}"),
        reason=record["reasons"][f"planned-fixed-eps{middle:g}"],
        statements=[
            (f"{ARMS[kind]}, ε = {e:g}", _stated(mechanisms[f"{kind}-fixed-eps{e:g}"]).pairs)
            for e in (row["epsilon"] for row in record["rows"])
            for kind in ARMS
        ],
        not_covered=NOT_COVERED,
    )


def _stated(mechanism: Mechanism) -> Statement:
    """Return the statement of a run whose keys are no secret."""
    said = statement_of(mechanism)
    return replace(said, duties=tuple(SEEDED if duty == KEYS else duty for duty in said.duties))
