"""A page about a stream: what was released, with bands, and the guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from anechoic.statement.charts import Axis, Line, line_chart
from anechoic.statement.page import definitions, figure, fold, page, paragraph, section, table
from anechoic.streaming.release import Release
from anechoic.streaming.sentences import best_guess, protected, statement
from anechoic.streaming.stream import Stream

#: Points of one curve, and entries of a statistic that have curves of their own.
_POINTS, _CURVES = 600, 4


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
    size, labels = made[0][name].value.size, made[0].labels_of(name)
    chosen = range(size) if size <= _CURVES else np.linspace(0, size - 1, _CURVES).astype(int).tolist()
    places = sorted(set(np.linspace(0, len(made) - 1, min(len(made), _POINTS)).astype(int).tolist()))
    parts = []
    for entry in chosen:
        label = f"{name}: {labels[entry]}" if labels[entry] else name
        value, low, high = (_parts(made, places, name, part, entry) for part in ("value", "low", "high"))
        lowest, highest = (_parts(wide, places, name, part, entry) for part in ("low", "high"))
        bands = [(lowest, highest), (low, high)]
        curve = Line(label, "planned", places, value, markers=False, bands=bands)
        chart = line_chart([curve], x=Axis("step"), y=Axis("", form=short), title=f"{label}, by step")
        parts.append(figure(chart, f"{label}, by step"))
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
    return [*parts, shown if size <= _CURVES else fold("Last release, all entries", shown)]


def _parts(made: Sequence[Release], places: Sequence[int], name: str, part: str, entry: int) -> list[float]:
    """Of one entry of a statistic, over the steps at these places."""
    return [float(getattr(made[place][name], part).ravel()[entry]) for place in places]


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


_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float) -> str:
    """A number for an axis: 327.5k, 1.2M, 0.0035."""
    for size, letter in _LARGE:
        if abs(value) >= 10 * size or (size >= 1e6 and abs(value) >= size):
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
