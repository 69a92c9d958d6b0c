"""Charts as SVG text: they take fonts and colours from the page, scale, and need no plotting library."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 8, 52


@dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        label: name in the legend.
        role: CSS class that gives the colour, for instance "planned".
        x, y: values, of the same length.
        error: half-lengths of the error bars, or None.
        markers: whether points are marked.
    """

    label: str
    role: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    markers: bool = True


@dataclass(frozen=True)
class Level:
    """A horizontal line across the chart, dashed."""

    label: str
    role: str
    y: float


@dataclass(frozen=True)
class Axis:
    """One axis: its label, whether it is logarithmic, ticks where they should not be chosen, tick format."""

    label: str
    log: bool = False
    ticks: Sequence[float] | None = None
    form: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    zero: bool = False


def line_chart(lines: Sequence[Line], *, x: Axis, y: Axis, levels: Sequence[Level] = (), title: str) -> str:
    """A legend (HTML) and an SVG element with the curves, their error bars, the levels and the axes.

    Args:
        lines: at least one.
        x, y: axes. `zero` of an axis makes it start at 0.
        levels: horizontal lines, for instance what is reached without privacy.
        title: what the chart shows, for readers who cannot see it.

    Raises:
        ValueError: if there is nothing to draw, or a value is not finite.
    """
    xs = [float(v) for line in lines for v in line.x]
    ys = [float(v) + s * e for line in lines for v, e in _with_error(line) for s in (-1, 1)]
    ys += [level.y for level in levels]
    if not xs or not all(map(math.isfinite, xs + ys)):
        raise ValueError(f"chart {title!r} needs at least one point, and finite values only.")
    x_low, x_high = _limits(xs, x)
    y_low, y_high = _limits(ys, y)
    x_ticks = list(x.ticks) if x.ticks is not None else nice_ticks(x_low, x_high)
    y_ticks = list(y.ticks) if y.ticks is not None else nice_ticks(y_low, y_high)

    top = _TOP
    px = _scale(x_low, x_high, _LEFT + 8, WIDTH - _RIGHT - 8, log=x.log)
    py = _scale(y_low, y_high, HEIGHT - _BOTTOM - 6, top + 6, log=y.log)

    shown: list[Line | Level] = [*lines, *levels]
    keys = "".join(f'<span class="{item.role}"><i></i>{escape(item.label)}</span>' for item in shown)
    out = [
        f'<div class="legend">{keys}</div>',
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    for tick in y_ticks:
        if y_low <= tick <= y_high:
            at = py(tick)
            out.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            out.append(
                f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y.form(tick)}</text>'
            )
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            at, foot = px(tick), HEIGHT - _BOTTOM
            out.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{foot}" y2="{foot + 5}"/>')
            out.append(
                f'<text class="tick" x="{at:.1f}" y="{foot + 20}" text-anchor="middle">{x.form(tick)}</text>'
            )
    foot = HEIGHT - _BOTTOM
    out.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{foot}" y2="{foot}"/>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    out.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
    )
    centre = (top + foot) / 2
    out.append(
        f'<text class="label" transform="translate(14 {centre:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    for level in levels:
        at = py(level.y)
        out.append(
            f'<line class="level {level.role}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}"'
            f' y1="{at:.1f}" y2="{at:.1f}">'
            f"<title>{escape(level.label)}: {level.y:.4g}</title></line>"
        )
    out += [_curve(line, px, py, x, y) for line in lines]
    return "\n".join([*out, "</svg>"])


def heat_map(matrix: ArrayLike, *, label: str, title: str, limit: float | None = None) -> str:
    """An SVG element with one coloured cell an entry and a colour bar, symmetric about zero.

    Colours follow the signed square root of the entries, so that small ones stay visible.

    Args:
        matrix: shape (rows, columns), finite.
        label: caption above the map.
        title: what it shows, for readers who cannot see it.
        limit: entry with the full colour; None for the largest absolute value.

    Raises:
        ValueError: if the matrix is empty or not finite.
    """
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"heat map {title!r} needs a finite matrix; it has shape {values.shape}.")
    bound = float(limit if limit is not None else max(np.abs(values).max(), 1e-300))
    side, left, top = 300, 34, 30
    rows, columns = values.shape
    cells = png(colours(_signed_root(values / bound)))
    ramp = np.linspace(1, -1, 101)[:, None]
    bar, x_bar = png(colours(ramp)), left + side + 18
    out = [
        f'<svg class="chart" viewBox="0 0 {left + side + 92} {top + side + 40}" role="img" '
        f'aria-label="{escape(title)}">',
        f'<text class="head" x="{left}" y="18">{escape(label)}</text>',
        _image(cells, left, top, side, side, pixelated=True),
        f'<rect class="frame" x="{left}" y="{top}" width="{side}" height="{side}"/>',
        _image(bar, x_bar, top, 14, side, pixelated=False),
        f'<rect class="frame" x="{x_bar}" y="{top}" width="14" height="{side}"/>',
    ]
    for position in (1.0, 0.5, 0.25, 0.0, -0.25, -0.5, -1.0):
        at = top + side * (1 - float(_signed_root(np.array(position)))) / 2
        out.append(
            f'<text class="tick" x="{x_bar + 20}" y="{at + 4:.1f}">{_minus(f"{position * bound:.3g}")}</text>'
        )
    for index in sorted({0, columns // 2, columns - 1}):
        at = left + side * (index + 0.5) / columns
        out.append(
            f'<text class="tick" x="{at:.1f}" y="{top + side + 16}" text-anchor="middle">{index}</text>'
        )
    for index in sorted({0, rows // 2, rows - 1}):
        at = top + side * (index + 0.5) / rows
        out.append(f'<text class="tick" x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{index}</text>')
    centre = left + side / 2
    out.append(
        f'<text class="label" x="{centre}" y="{top + side + 34}" text-anchor="middle">'
        "step of the fresh noise</text>"
    )
    return "\n".join([*out, "</svg>"])


def nice_ticks(low: float, high: float, count: int = 8) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def colours(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """RGB of values in [-1, 1], shape (..., 3): orange, white at zero, blue."""
    white, blue, orange = (
        np.array(c, dtype=np.float64) for c in ((255, 255, 255), (16, 78, 139), (196, 78, 18))
    )
    v = np.clip(values, -1, 1)[..., None]
    rgb = np.where(v >= 0, white + v * (blue - white), white - v * (orange - white))
    return np.asarray(np.rint(rgb), dtype=np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of RGB pixels, shape (height, width, 3)."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _signed_root(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _image(data: bytes, x: float, y: float, width: float, height: float, *, pixelated: bool) -> str:
    style = ' style="image-rendering:pixelated"' if pixelated else ""
    text = base64.b64encode(data).decode("ascii")
    return (
        f'<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none"{style} '
        f'href="data:image/png;base64,{text}"/>'
    )


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _with_error(line: Line) -> list[tuple[float, float]]:
    error = line.error if line.error is not None else [0.0] * len(line.y)
    return [(float(v), float(e)) for v, e in zip(line.y, error, strict=True)]


def _limits(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    low, high = min(values), max(values)
    if axis.log:
        margin = (high / low) ** 0.08 if high > low else 1.5
        return low / margin, high * margin
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if axis.zero else low - margin), high + margin


def _scale(low: float, high: float, start: float, end: float, *, log: bool) -> Callable[[float], float]:
    def at(value: float) -> float:
        if log:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return start + share * (end - start)

    return at


def _curve(line: Line, px: Callable[[float], float], py: Callable[[float], float], x: Axis, y: Axis) -> str:
    points = [(px(float(a)), py(float(b))) for a, b in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    out = [f'<polyline class="curve {line.role}" points="{path}"/>']
    for (a, b), x_value, (y_value, error) in zip(points, line.x, _with_error(line), strict=True):
        if error:
            low, high = py(y_value - error), py(y_value + error)
            out.append(
                f'<path class="bar {line.role}" d="M{a:.1f} {low:.1f}V{high:.1f}M{a - 5:.1f} {low:.1f}h10'
                f'M{a - 5:.1f} {high:.1f}h10"/>'
            )
        if line.markers:
            spread = f" ± {error:.2g}" if error else ""
            tip = f"{line.label}, {x.label} {x.form(float(x_value))}: {y_value:.4g}{spread}"
            out.append(
                f'<circle class="dot {line.role}" cx="{a:.1f}" cy="{b:.1f}" r="4">'
                f"<title>{escape(tip)}</title></circle>"
            )
    return "\n".join(out)
