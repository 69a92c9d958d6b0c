"""A page about a stream: what was released, with bands, and the guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from anechoic.plots.curves import line_figure
from anechoic.statement.page import definitions, figure, fold, page, paragraph, section, table
from anechoic.streaming.chart import CURVES, curve_of, entries_of
from anechoic.streaming.release import Release
from anechoic.streaming.sentences import best_guess, protected, statement
from anechoic.streaming.stream import Stream


def write_page(path: Path, stream: Stream, *, title: str) -> None:
    """Write the page of all releases so far.

    Raises:
        AnechoicError: without matplotlib.
    """
    made = list(stream.releases())
    parts = [f"<h1>{escape(title)}</h1>", paragraph(_lead(stream, made), "lead")]
    if made:
        wide = stream.band()
        for name in made[0].estimates:
            parts.append(section(name, *_of_statistic(name, made, wide)))
    parts.append(section("The guarantee", *_guarantee(stream)))
    path.write_text(page(title, "\n".join(parts)), encoding="utf-8")


def _lead(stream: Stream, made: Sequence[Release]) -> str:
    if not made:
        return "Nothing has been released yet."
    return (
        f"{len(made)} releases, over {stream.over.describe()}. All of them together are"
        f" ({made[-1].epsilon:.3g}, {made[-1].delta:g})-differentially private for each"
        f" {stream.mechanism.unit}. Dark bands hold for one step with probability {stream.level:.0%}, light"
        " ones for all steps together. Bands speak of the noise, not of records that were clipped or left"
        f" out. {best_guess(stream.mechanism)}"
    )


def _of_statistic(name: str, made: Sequence[Release], wide: Sequence[Release]) -> list[str]:
    size = made[0][name].value.size
    parts = []
    for entry in entries_of(made[0], name):
        drawn = curve_of(name, entry, made, wide)
        parts.append(
            figure(
                line_figure([drawn.lines[0]], x=drawn.x, y=drawn.y, title=drawn.heading)._repr_html_(),
                drawn.heading,
            )
        )
    labels = made[0].labels_of(name)
    last = made[-1][name]
    rows = [
        [label, *(f"{number:.6g}" if np.isfinite(number) else "–" for number in numbers)]
        for label, *numbers in zip(
            labels,
            last.value.ravel(),
            last.standard_error.ravel(),
            last.low.ravel(),
            last.high.ravel(),
            strict=True,
        )
    ]
    shown = table(["entry", "estimate", "standard error", "low", "high"], rows)
    return [*parts, shown if size <= CURVES else fold("Last release, all entries", shown)]


def _guarantee(stream: Stream) -> list[str]:
    mechanism = stream.mechanism
    items = [
        ("Protected", protected(stream)),
        ("Guarantee", f"({mechanism.epsilon():.4g}, {mechanism.delta:g})-DP for {mechanism.steps} releases"),
        ("What that means", best_guess(mechanism)),
        ("Noise", mechanism.strategy.describe()),
        ("Exact rounding", "yes" if mechanism.grid_bits is not None else "no: floating point"),
        ("Not protected", "when steps end, and how many there are; side channels; what other releases show"),
        ("Fingerprint", mechanism.fingerprint),
    ]
    return [definitions(items), fold("The whole statement", f"<pre>{escape(statement(stream))}</pre>")]
