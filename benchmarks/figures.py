"""The monograph's figures, drawn from what this library computes: python benchmarks/figures.py [NAME ...]

    make figures                              # all of them, into docs/images/monograph
    python benchmarks/figures.py 2.2 --out figures --format png

Names are the monograph's: 1.6, 2.1, 2.2, 2.4, 2.5, 2.6, 3.1, 3.2, 3.3 (3.4 comes with it), 3.5, 3.7, 3.13,
4.1, 4.2, 4.3.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anechoic import optimize, workloads
from anechoic.algebra import toeplitz
from anechoic.participation import Cyclic, MinSep, Single
from anechoic.strategies import BandedToeplitz, ColumnNormalized, FullTree, Identity, Output, Toeplitz
from anechoic.strategies.base import Strategy

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
sys.path.insert(0, str(Path(__file__).parent))
from monograph import amplification, batch_size, small

from anechoic.losses.dispatch import error, loss
from studies.published.monograph import logarithmic_lower_bound, logarithmic_upper_bound

Array = NDArray[np.float64]
#: Errors of one run that the caption of Figure 1.6 prints.
PRINTED = {
    ("gradients", "independent"): 1.10,
    ("gradients", "correlated"): 1.70,
    ("sums", "independent"): 6.02,
    ("sums", "correlated"): 2.34,
}
SMALLEST = 1e-7  # coefficients below it are not drawn
COLOURS = {"Toeplitz": "C3", "BLT, 4 buffers": "C5", "column-normalised Toeplitz": "C4"}
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "font.size": 9}


def figure_1_6(out: Callable[[str, Figure], None]) -> None:
    """One trajectory of 40 steps in two dimensions, correlated against independent noise of equal privacy."""
    n, dimension, truth = 40, 2, np.array([-1.0, 0.0])
    a = workloads.prefix_sum(n)
    correlated = optimize.dense(a, loss="max").strategy
    z = np.random.default_rng(6).standard_normal((n, dimension))
    figure, (path, single, sums) = plt.subplots(3, 1, figsize=(7, 9), layout="constrained")
    path.plot(*np.cumsum(np.tile(-truth, (n, 1)), axis=0).T, "k", lw=1.5, label="no noise")
    steps = np.arange(1, n + 1)
    for strategy, colour, label in (
        (Identity(n), "tab:green", "independent"),
        (correlated, "tab:blue", "correlated"),
    ):
        scale = float(np.sqrt(strategy.column_norms_squared().max()))
        noise = scale * strategy.correlate(z)
        gradients = truth + noise
        path.plot(*(-np.cumsum(gradients, axis=0)).T, color=colour, lw=1, label=label)
        expected = {
            "gradients": scale * _rms_rows(strategy.correlate(np.eye(n))) * np.sqrt(dimension),
            "sums": scale * error(a, strategy).rms * np.sqrt(dimension),
        }
        for axes, errors, key in (
            (single, noise, "gradients"),
            (sums, np.cumsum(noise, axis=0), "sums"),
        ):
            sizes = np.linalg.norm(errors, axis=1)
            rms = np.sqrt(np.mean(sizes**2))
            words = (
                f"{label}: RMSE {rms:.2f}, expected {expected[key]:.2f}, printed {PRINTED[key, label]:.2f}"
            )
            axes.plot(steps, sizes, color=colour, lw=1, label=words)
            print(f"1.6 {key}: {words}")
    path.set(title="Iterates, gradients (−1, 0), learning rate 1", xlabel="first coordinate")
    single.set(title="Error of single gradients", xlabel="step")
    sums.set(title="Error of prefix sums", xlabel="step")
    for axes in (path, single, sums):
        axes.legend()
    out("1.6", figure)


def _rms_rows(matrix: Array) -> float:
    return float(np.sqrt(np.square(matrix).sum(axis=1).mean()))


def _streaming_mechanisms(n: int) -> dict[str, Strategy]:
    a = workloads.prefix_sum(n)
    return {
        "dense, RMS": optimize.dense(a, loss="rms").strategy,
        "Toeplitz, max": Toeplitz.square_root(a),
        "banded Toeplitz, max, 16 bands": optimize.banded_toeplitz(a, bands=16, loss="max").strategy,
    }


def _heat(axes: Axes, matrix: Array, title: str) -> None:
    # a cube root keeps small entries visible; the diagonal would hide them
    shown = np.sign(matrix) * np.abs(matrix) ** (1 / 3)
    limit = np.abs(shown).max()
    axes.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(title, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])


def _normalised(strategy: Strategy) -> Array:
    dense = strategy.to_dense()
    return dense / np.sqrt(np.square(dense).sum(axis=0).max())


def _pairs(mechanisms: dict[str, Strategy]) -> Figure:
    figure, axes = plt.subplots(
        2, len(mechanisms), figsize=(2.6 * len(mechanisms), 5.4), layout="constrained"
    )
    for column, (name, strategy) in enumerate(mechanisms.items()):
        c = _normalised(strategy)
        _heat(axes[0, column], c, f"C: {name}")
        _heat(axes[1, column], np.linalg.inv(c), "C⁻¹")
    return figure


def figure_2_1(out: Callable[[str, Figure], None]) -> None:
    """C and its inverse for n = 64: dense, Toeplitz, banded Toeplitz."""
    out("2.1", _pairs(_streaming_mechanisms(64)))


def figure_3_3(out: Callable[[str, Figure], None]) -> None:
    """2.1 and two mechanisms for several participations; 3.4 draws the means of their diagonals."""
    n, b = 64, 16
    a = workloads.prefix_sum(n)
    mechanisms = _streaming_mechanisms(n)
    mechanisms["BLT, max, min-sep 16"] = optimize.blt(a, participation=MinSep(b), loss="max").strategy
    mechanisms["dense, RMS, cyclic 16"] = optimize.dense(a, participation=Cyclic(b)).strategy
    out("3.3", _pairs(mechanisms))
    negative = float(_normalised(mechanisms["dense, RMS, cyclic 16"]).min())
    print(f"3.3 smallest entry of the cyclic dense C: {negative:.4f}")
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 6), layout="constrained", sharex=True)
    for name, strategy in mechanisms.items():
        c = _normalised(strategy)
        for axes, matrix in ((upper, c), (lower, np.linalg.inv(c))):
            axes.plot([matrix.diagonal(-lag).mean() for lag in range(n)], "o-", ms=2.5, lw=1, label=name)
    upper.set(title="Mean of each diagonal of C", yscale="symlog")
    upper.set_yscale("symlog", linthresh=1e-2)
    lower.set_yscale("symlog", linthresh=1e-2)
    lower.set(title="Mean of each diagonal of C⁻¹", xlabel="steps below the main diagonal")
    upper.legend(fontsize=7)
    out("3.4", figure)


def _losses_by_n(kind: str, sizes: list[int], dense_up_to: int) -> dict[str, dict[int, float]]:
    """Loss of every mechanism of Figs. 2.2 and 2.4 at every n."""
    found: dict[str, dict[int, float]] = {}

    def keep(name: str, n: int, value: float) -> None:
        found.setdefault(name, {})[n] = value

    for n in sizes:
        a = workloads.prefix_sum(n)
        fixed = {
            "input perturbation": Identity(n),
            "output perturbation": Output(a),
            "tree, full": FullTree(n),
            "Toeplitz": optimize.toeplitz(a, loss=kind).strategy,
            "column-normalised Toeplitz": ColumnNormalized(Toeplitz.square_root(a)),
        }
        for name, strategy in fixed.items():
            keep(name, n, loss(a, strategy, Single(), kind))
        keep("BLT, 4 buffers", n, optimize.blt(a, buffers=4, loss=kind).loss)
        if n <= dense_up_to:
            keep("dense", n, optimize.dense(a, loss=kind).loss)
        keep("lower bound (Theorem 2.4)", n, logarithmic_lower_bound(n))
        keep("upper bound (Theorem 2.4)", n, logarithmic_upper_bound(n))
    return found


def _comparison(name: str, kind: str, out: Callable[[str, Figure], None]) -> None:
    sizes = [2**power for power in range(3, 14)]
    found = _losses_by_n(kind, sizes, dense_up_to=2048)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7.5, 8.5), layout="constrained", sharex=True)
    for label, values in found.items():
        bound = "bound" in label
        style = (
            {"color": "0.6", "ls": "--" if "upper" in label else ":"} if bound else {"marker": "o", "ms": 3}
        )
        upper.loglog(list(values), list(values.values()), label=label, lw=1.2, **style)
    dense = found["dense"]
    for label in ("Toeplitz", "BLT, 4 buffers", "column-normalised Toeplitz"):
        excess = {n: value - dense[n] for n, value in found[label].items() if n in dense}
        lower.semilogx(
            list(excess), list(excess.values()), "o-", color=COLOURS[label], ms=3, lw=1.2, label=label
        )
    title = f"{'Max' if kind == 'max' else 'RMS'} loss of prefix sums, one participation"
    upper.set_title(title, loc="left")
    lower.set_title("Excess over the dense mechanism", loc="left")
    lower.set_xlabel("steps n")
    upper.legend(fontsize=7)
    lower.legend(fontsize=7)
    out(name, figure)


def figure_2_2(out: Callable[[str, Figure], None]) -> None:
    """Max loss by n."""
    _comparison("2.2", "max", out)


def figure_2_4(out: Callable[[str, Figure], None]) -> None:
    """RMS loss by n."""
    _comparison("2.4", "rms", out)


def _approximations(name: str, candidates: dict[str, Array], out: Callable[[str, Figure], None]) -> None:
    """Generating functions of C and C^-1 against 1/sqrt(1-x) and sqrt(1-x): whole, near 1, coefficients."""
    n = len(next(iter(candidates.values())))
    root = Toeplitz.square_root(workloads.prefix_sum(n)).coefficients
    bands = any("bands" in label for label in candidates)
    wide = np.linspace(0.0, 0.999, 300)
    near = 1.0 - np.geomspace(0.1 / n, 1.0, 300)
    shown = np.unique(np.geomspace(1, n, 120).astype(int)) - 1
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    curves = {"square root": root, **candidates}
    for place, (label, c) in enumerate(curves.items()):
        colour = "k" if place == 0 else f"C{place - 1}"
        for row, coefficients in enumerate((c, toeplitz.inverse(c, n))):
            values = np.polynomial.polynomial.polyval
            if place == 0:
                exact = (lambda x: (1 - x) ** -0.5) if row == 0 else (lambda x: (1 - x) ** 0.5)
                axes[row, 0].plot(wide, exact(wide), colour, lw=2, label="optimal")
                axes[row, 1].loglog(1 - near, exact(near), colour, lw=2, label="optimal")
            else:
                axes[row, 0].plot(wide, values(wide, coefficients), colour, lw=1, label=label)
                axes[row, 1].loglog(1 - near, values(near, coefficients), colour, lw=1, label=label)
            sign = 1 if row == 0 else -1
            kept = shown if row == 0 else shown[shown > 0]
            seen = sign * coefficients[kept]
            seen[seen < SMALLEST] = np.nan  # of the other sign, or rounding
            alone = {"marker": ".", "ms": 3, "ls": "none"} if bands and row else {}
            axes[row, 2].loglog(kept + 1, seen, colour, lw=2 if place == 0 else 1, **alone)
    for row, what in enumerate(("C: 1/√(1−x)", "C⁻¹: √(1−x)")):
        axes[row, 0].set_title(f"Generating function of {what}")
        axes[row, 1].set_title("near x = 1")
        axes[row, 1].axvline(1 / n, color="0.5", ls=":")
        axes[row, 1].set_xlabel("1 − x")
        axes[row, 1].invert_xaxis()
        axes[row, 2].set_title("coefficients" if row == 0 else "−coefficients, from the second on")
    axes[0, 0].legend(fontsize=7)
    out(name, figure)


def figure_2_5(out: Callable[[str, Figure], None]) -> None:
    """Banded Toeplitz: polynomials, n = 10^4."""
    a = workloads.prefix_sum(10**4)
    candidates = {}
    for bands in (4, 16, 64, 256):
        strategy = optimize.banded_toeplitz(a, bands=bands, loss="max").strategy
        c = BandedToeplitz(a.n, strategy.coefficients[:bands]).coefficients
        candidates[f"{bands} bands"] = c / c[0]
    _approximations("2.5", candidates, out)


def figure_2_6(out: Callable[[str, Figure], None]) -> None:
    """BLT: rational functions, n = 10^4."""
    a = workloads.prefix_sum(10**4)
    candidates = {
        f"{buffers} buffer{'s' * (buffers > 1)}": optimize.blt(
            a, buffers=buffers, loss="max"
        ).strategy.coefficients
        for buffers in (1, 2, 3, 4)
    }
    _approximations("2.6", candidates, out)


FIGURES = {
    "1.6": figure_1_6,
    "2.1": figure_2_1,
    "2.2": figure_2_2,
    "2.4": figure_2_4,
    "2.5": figure_2_5,
    "2.6": figure_2_6,
    "3.1": amplification.figure_3_1,
    "3.2": amplification.figure_3_2,
    "3.3": figure_3_3,
    "3.5": batch_size.figure_3_5,
    "3.7": small.figure_3_7,
    "3.13": small.figure_3_13,
    "4.1": small.figure_4_1,
    "4.2": small.figure_4_2,
    "4.3": batch_size.figure_4_3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(FIGURES)} (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/monograph"), metavar="DIR")
    parser.add_argument("--format", default="svg", choices=("svg", "png", "pdf"))
    options = parser.parse_args()
    if unknown := set(options.names) - set(FIGURES):
        parser.error(f"unknown figure {sorted(unknown)[0]!r}: choose from {', '.join(FIGURES)}")
    options.out.mkdir(parents=True, exist_ok=True)

    def out(name: str, figure: Figure) -> None:
        file = options.out / f"figure-{name.replace('.', '-')}.{options.format}"
        metadata = {"Date": None} if options.format == "svg" else None
        figure.savefig(file, metadata=metadata, dpi=150)
        plt.close(figure)
        print(f"{name}: {file}", flush=True)

    with plt.rc_context(STYLE | {"svg.hashsalt": "anechoic"}):
        for name in options.names or FIGURES:
            started = time.perf_counter()
            FIGURES[name](out)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
