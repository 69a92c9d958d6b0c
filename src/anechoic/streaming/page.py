"""A page about a stream: what was released, with bands, and the guarantee. It needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from anechoic._validate import Array
from anechoic.statement.page import definitions, figure, fold, page, paragraph, section, table
from anechoic.streaming.estimator import Estimator
from anechoic.streaming.release import Release

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 240, 64, 24
#: Points of one curve, and entries of a statistic that have curves of their own.
_POINTS, _CURVES = 600, 4


def write_page(path: Path, stream: Estimator, *, title: str) -> None:
    """Write the page of all releases so far."""
    made = list(stream.releases())
    parts = [f"<h1>{escape(title)}</h1>", paragraph(_lead(stream, made), "lead")]
    if made:
        wide = stream.band()
        for name in made[0].estimates:
            parts.append(section(name, *_of_statistic(name, made, wide)))
    parts.append(section("The guarantee", *_guarantee(stream)))
    path.write_text(page(title, "\n".join(parts)), encoding="utf-8")


def _lead(stream: Estimator, made: Sequence[Release]) -> str:
    if not made:
        return "Nothing has been released yet."
    return (
        f"{len(made)} releases, over {stream.over.describe()}. All of them together are"
        f" ({made[-1].epsilon:.3g}, {made[-1].delta:g})-differentially private for each"
        f" {stream.mechanism.unit}. Dark bands hold for one step with probability {stream.level:.0%}, light"
        " ones for all steps together. Bands speak of the noise, not of records that were clipped or left"
        " out."
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
        [label, *(f"{number:.6g}" for number in numbers)]
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
    x = _LEFT + (_WIDTH - _LEFT - 8) * places / max(1, len(near) - 1)

    def y(values: Array) -> Array:
        return np.asarray(8 + (_HEIGHT - _BOTTOM - 8) * (top - values) / span)

    def points(xs: Array, ys: Array) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))

    def band(rows: Array, colour: str) -> str:
        there, back = points(x, y(rows[places, 2])), points(x[::-1], y(rows[places, 1])[::-1])
        return f'<polygon points="{there} {back}" fill="{colour}"/>'

    texts = "".join(
        f'<text x="{_LEFT - 8}" y="{float(y(np.array(v))) + 4:.1f}" text-anchor="end">{v:.4g}</text>'
        for v in (bottom, (bottom + top) / 2, top)
    )
    texts += f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0</text>'
    texts += f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">step {len(near) - 1}</text>'
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}"'
        f' font-size="12" fill="#57606a">{band(far, "#dbe6f1")}{band(near, "#a9c3dd")}'
        f'<polyline points="{points(x, y(near[places, 0]))}" fill="none" stroke="#104e8b"'
        ' stroke-width="1.5"/>'
        f"{texts}</svg>"
    )


def statement(stream: Estimator) -> str:
    """For a privacy reviewer, as text: what the stream adds to its mechanism's statement, and that statement.

    It holds no secret and nothing of the data.
    """
    mechanism, shared = stream.mechanism, stream.shared
    lines = [
        "STREAM",
        f"Protected            {_protected(stream)}",
        f"Released             {stream.over.describe()}, after each step; {stream.step} of"
        f" {mechanism.steps} so far.",
        f"One unit, one step   norm at most {shared.contribution:.9f} clip norms, whatever its records hold.",
    ]
    for name, one in shared.statistics.items():
        described = {key: value for key, value in one.describe().items() if key not in ("kind", "column")}
        text = ", ".join(f"{key} {value!r:.60}" for key, value in described.items())
        lines.append(f"Statistic            {name}: {one.describe()['kind']}{', ' if text else ''}{text}")
    lines += [
        "Chosen in advance    all bounds, categories, edges and weights: without looking at the data.",
        "Not protected        when steps end, and how many there are.",
        "",
    ]
    return "\n".join(lines) + "\n" + mechanism.report()


def _protected(stream: Estimator) -> str:
    unit = stream.mechanism.unit
    if not stream.by_unit:
        return f"one {unit}, which is one record: that no {unit} has several is a promise of whoever feeds it"
    return (
        f"one {unit}: {stream.participation.describe()}. Enforced: further records are left out, and more"
        f" than {stream.per_step} in one step"
    )


def _guarantee(stream: Estimator) -> list[str]:
    mechanism = stream.mechanism
    items = [
        ("Protected", _protected(stream)),
        ("Guarantee", f"({mechanism.epsilon():.4g}, {mechanism.delta:g})-DP for {mechanism.steps} releases"),
        ("Noise", mechanism.strategy.describe()),
        ("Exact rounding", "yes" if mechanism.grid_bits is not None else "no: floating point"),
        ("Not protected", "when steps end, and how many there are; side channels; what other releases show"),
        ("Fingerprint", mechanism.fingerprint),
    ]
    return [definitions(items), fold("The whole statement", f"<pre>{escape(statement(stream))}</pre>")]
