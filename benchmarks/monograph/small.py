"""Figs. 3.7, 3.13, 4.1 and 4.2: matrices of two or three entries, which can be seen whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from anechoic.theory.learning import effective_dimension

Array = NDArray[np.float64]
SLICES = (0.0, 0.3, 0.6)  # values of y at which the balls of Fig. 3.7 are cut


def column_norm(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """Largest column norm of [[x, y], [y, z]]: the sensitivity to one participation."""
    x, y, z = np.broadcast_arrays(x, y, z)
    return np.asarray(np.sqrt(np.maximum(x**2 + y**2, y**2 + z**2)))


def sign_norm(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """Largest |M s| over signs s of [[x, y], [y, z]]: the sensitivity to full batches."""
    x, y, z = np.broadcast_arrays(x, y, z)
    found = [(x + s * y) ** 2 + (y + s * z) ** 2 for s in (1.0, -1.0)]
    return np.asarray(np.sqrt(np.maximum(*found)))


def figure_3_7(out: Callable[[str, Figure], None]) -> None:
    """Unit balls of both norms, cut at three values of y, with their volumes."""
    grid = np.linspace(-1.05, 1.05, 401)
    x, z = np.meshgrid(grid, grid, indexing="ij")
    points = np.random.default_rng(0).uniform(-1.0, 1.0, (3, 400_000))
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.5), layout="constrained", sharey=True)
    for panel, (norm, name) in zip(
        axes, ((column_norm, "‖M‖ of columns"), (sign_norm, "‖M‖ of ∞ → 2")), strict=True
    ):
        volume = 8.0 * float((norm(*points) <= 1.0).mean())
        print(f"3.7 {name}: volume {volume:.3f}")
        for place, y in enumerate(SLICES):
            panel.contour(x, z, norm(x, y, z), levels=[1.0], colors=f"C{place}")
            panel.plot([], [], color=f"C{place}", label=f"y = {y:g}")
        panel.set(title=f"{name} ≤ 1: volume {volume:.2f}", xlabel="x", aspect="equal")
    axes[0].set_ylabel("z")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    out("3.7", figure)


def figure_3_13(out: Callable[[str, Figure], None]) -> None:
    """Two Gaussian densities and their effective dimensions."""
    grid = np.linspace(-3.0, 3.0, 241)
    x, y = np.meshgrid(grid, grid)
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.4), layout="constrained", sharey=True)
    for panel, values in zip(axes, ([1.0, 1.0], [1.2, 0.04]), strict=True):
        turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2.0)
        u, v = np.einsum("ij,jkl->ikl", turn.T, np.array([x, y]))
        density = np.exp(-(u**2) / values[0] / 2 - v**2 / values[1] / 2) / (
            2 * np.pi * np.sqrt(np.prod(values))
        )
        panel.contourf(x, y, density, levels=12, cmap="Blues")
        effective = effective_dimension(values)
        print(f"3.13 eigenvalues {values}: effective dimension {effective:.4f}")
        panel.set(
            title=f"eigenvalues {values[0]:g}, {values[1]:g}: dimension {effective:.2f}", aspect="equal"
        )
    out("3.13", figure)


def figure_4_1(out: Callable[[str, Figure], None]) -> None:
    """|B|_row^2 has an edge and |B|_F^2 has none, for B = [[x1, 0], [1, x2]]."""
    grid = np.linspace(-2.0, 2.0, 201)
    x1, x2 = np.meshgrid(grid, grid)
    row, whole = np.maximum(x1**2, 1.0 + x2**2), x1**2 + 1.0 + x2**2
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained", sharey=True)
    levels = np.linspace(1.0, 9.0, 17)
    for panel, (values, name) in zip(axes, ((row, "‖B‖²_row"), (whole, "‖B‖²_F")), strict=True):
        shown = panel.contourf(x1, x2, values, levels=levels, cmap="viridis")
        panel.contour(x1, x2, values, levels=levels, colors="w", linewidths=0.4)
        panel.set(title=name, xlabel="x₁", aspect="equal")
    edge = np.sqrt(1.0 + grid**2)
    for side in (edge, -edge):
        axes[0].plot(side, grid, "r--", lw=1)
    axes[0].set(ylabel="x₂", xlim=(-2.0, 2.0), title="‖B‖²_row, edges dashed")
    figure.colorbar(shown, ax=axes)
    out("4.1", figure)


def trace_of_inverse(x: ArrayLike, y: ArrayLike) -> Array:
    """tr M^-1 of M = diag(x, y, 1 - x - y)."""
    x, y = np.broadcast_arrays(x, y)
    return np.asarray(1.0 / x + 1.0 / y + 1.0 / (1.0 - x - y))


def figure_4_2(out: Callable[[str, Figure], None]) -> None:
    """The objective of Problem 4.3 where M > 0, and elsewhere."""
    grid = np.linspace(-0.597, 1.403, 500)  # no point has an eigenvalue of 0
    x, y = np.meshgrid(grid, grid)
    value = trace_of_inverse(x, y)
    inside = (x > 0) & (y > 0) & (x + y < 1)
    least = np.unravel_index(np.where(inside, value, np.inf).argmin(), value.shape)
    print(f"4.2 least {value[least]:.3f} at {x[least]:.3f}, {y[least]:.3f}: 9 at 1/3, 1/3")
    figure, panel = plt.subplots(figsize=(5.0, 3.8), layout="constrained")
    kind = LogNorm(9.0, 200.0)
    shown = panel.pcolormesh(x, y, np.where(inside, value, np.nan), norm=kind, cmap="Reds", rasterized=True)
    figure.colorbar(shown, ax=panel, label="tr M⁻¹ where M is positive definite", extend="max")
    outside = np.where(inside, np.nan, np.clip(value, -40.0, 40.0))
    panel.pcolormesh(x, y, outside, cmap="Blues_r", vmin=-40.0, vmax=60.0, rasterized=True)
    panel.plot(1 / 3, 1 / 3, "k.", ms=5)
    panel.annotate("least: 9", (1 / 3, 1 / 3), (0.12, 0.2))
    for line in (panel.axvline, panel.axhline):
        line(0.0, color="k", lw=0.8)
    panel.plot(grid, 1.0 - grid, "k", lw=0.8)
    panel.set(xticks=[-0.5, 0, 0.5, 1], yticks=[-0.5, 0, 0.5, 1])
    panel.set(xlabel="x", ylabel="y", xlim=(-0.6, 1.4), ylim=(-0.6, 1.4), aspect="equal")
    panel.set_title("M = diag(x, y, 1 − x − y); blue: an eigenvalue is negative")
    out("4.2", figure)
