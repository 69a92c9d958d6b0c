"""A page about a stream: what was released, with bands, and the guarantee. It needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from anechoic._validate import Array
from anechoic.statement.page import definitions, figure, fold, page, paragraph, section, table
from anechoic.streaming.release import Release
from anechoic.streaming.sentences import best_guess, protected, statement
from anechoic.streaming.stream import Stream

_WIDTH, _HEIGHT, _BOTTOM = 720, 240, 24
#: Width of a letter of the axis, at most: digits of common typefaces have 0.6 of their size of 12.
_LETTER = 7.5
#: Points of one curve, and entries of a statistic that have curves of their own.
_POINTS, _CURVES = 600, 4


def write_page(path: Path, stream: Stream, *, title: str) -> None:
    """Write the page of all releases so far."""
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
    parts = []
    for entry in chosen:
        near = [_entry(release, name, entry) for release in made]
        far = [_entry(release, name, entry) for release in wide]
        label = f"{name}: {labels[entry]}" if labels[entry] else name
        parts.append(figure(_chart(np.array(near), np.array(far), label), f"{label}, by step"))
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


def _entry(release: Release, name: str, entry: int) -> tuple[float, float, float]:
    estimate = release[name]
    return (
        float(estimate.value.ravel()[entry]),
        float(estimate.low.ravel()[entry]),
        float(estimate.high.ravel()[entry]),
    )


def _chart(near: Array, far: Array, label: str) -> str:
    """Two bands and a curve; rows of the arrays are (value, low, high)."""
    places = np.unique(np.linspace(0, len(near) - 1, min(len(near), _POINTS)).astype(int))
    bottom, top = float(far[places].min()), float(far[places].max())
    span = (top - bottom) or 1.0
    ticks = [(value, short(value)) for value in (bottom, (bottom + top) / 2, top)]
    left = 16 + _LETTER * max(len(text) for _, text in ticks)
    x = left + (_WIDTH - left - 8) * places / max(1, len(near) - 1)

    def y(values: Array) -> Array:
        return np.asarray(8 + (_HEIGHT - _BOTTOM - 8) * (top - values) / span)

    def points(xs: Array, ys: Array) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))

    def band(rows: Array, colour: str) -> str:
        there, back = points(x, y(rows[places, 2])), points(x[::-1], y(rows[places, 1])[::-1])
        return f'<polygon points="{there} {back}" fill="{colour}"/>'

    texts = "".join(
        f'<text x="{left - 8:.1f}" y="{float(y(np.array(value))) + 4:.1f}" text-anchor="end">{text}</text>'
        for value, text in ticks
    )
    texts += f'<text x="{left:.1f}" y="{_HEIGHT - 6}">0</text>'
    texts += f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">step {len(near) - 1}</text>'
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}"'
        f' font-size="12" fill="#57606a">{band(far, "#dbe6f1")}{band(near, "#a9c3dd")}'
        f'<polyline points="{points(x, y(near[places, 0]))}" fill="none" stroke="#104e8b"'
        ' stroke-width="1.5"/>'
        f"{texts}</svg>"
    )


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
