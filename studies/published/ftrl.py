"""Paper 001, *Private Stochastic Convex Optimization* (2020): what is false in it, and what is true."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from anechoic._validate import Array
from anechoic.theory.ftrl import contraction_rho, last_iterate_rho
from studies.published.exhibit import Curve, Exhibit, Panel

PAPER = "Private Stochastic Convex Optimization: Efficient Algorithms for Non-smooth Objectives (2020)"
STEPS = 10_000


def last_iterate() -> Exhibit:
    """The last iterate of one-pass noisy gradient descent: what is claimed, exact and sound."""
    fades = 1.0 - np.geomspace(1e-7, 1.0, 40)
    exact = np.array(
        [contraction_rho(steps=STEPS, fade=float(a), sensitivity=2.0, noise_std=1.0) for a in fades]
    )
    claimed = np.full(len(fades), 4.0 / STEPS)  # (alpha, 4 alpha L^2 / (T sigma^2)), over alpha
    shown = 1.0 - fades
    positions = np.unique(np.geomspace(1, STEPS, 30).astype(int))
    iterated = [
        last_iterate_rho(
            steps=STEPS, position=STEPS - int(k), smoothness=1.0, rate=1.0, lipschitz=1.0, noise_std=1.0
        )
        for k in positions
    ]
    every = np.full(len(positions), 4.0 / 2.0)
    curves = (
        Curve("claimed (Theorem 5.4)", shown, claimed, dashed=True),
        Curve("exact, quadratic", shown, exact),
        Curve("one step's noise alone", shown, np.full(len(fades), 2.0)),
    )
    spread = (
        Curve("amplification by iteration", positions.astype(float), np.array(iterated)),
        Curve("all iterates (mechanism C = I)", positions.astype(float), every, dashed=True),
        Curve(
            "claimed for every example",
            positions.astype(float),
            np.full(len(positions), 4.0 / STEPS),
            dashed=True,
        ),
    )
    seen, bound = huber()
    panels = (
        Panel("The last example", "ηβ", "ρ of the last iterate", curves, "xy"),
        Panel("Smooth losses, η ≤ 2/β", "steps after the example, itself included", "ρ", spread, "xy"),
    )
    remarks = (
        f"T = {STEPS}, L = σ = 1. For gradients βw + z the state is Gaussian, and the noise of a step"
        " fades by"
        " 1 − ηβ in each later one. At ηβ = 0.01 the exact ρ is"
        f" {contraction_rho(steps=STEPS, fade=0.99, sensitivity=2.0, noise_std=1.0):.4f},"
        f" the claimed one {4 / STEPS:.4f}; at ηβ = 1 it is T/2 = {STEPS // 2} times the claim.",
        "Gradients that are bounded everywhere (Huber) do not help: for T = 400, σ = 0.2, η = 1/√T, the"
        f" states of neighbours have a total variation of {seen:.3f} (by quadrature), where the claim, with"
        f" its own L = 2, allows {bound:.3f}.",
        "What holds (right): for convex losses whose gradients are β-Lipschitz and η ≤ 2/β, an"
        " example is protected"
        " by its own and all later noise, `theory.last_iterate_rho`. Losses that are not smooth have no such"
        " theorem here: `theory.PrivateFTRL` gives all iterates the guarantee of its mechanism.",
    )
    return Exhibit(
        "001-last-iterate",
        "The last iterate of private FTRL",
        f"{PAPER}, Theorems 4.1 and 5.4",
        panels,
        remarks=remarks,
    )


def huber(steps: int = 400, noise: float = 0.2, cells: int = 801) -> tuple[float, float]:
    """Total variation of the last iterate of neighbours under Huber gradients, and what the claim allows.

    The law of the state is carried on a grid; its last step is compared for gradients that differ by 2 L.
    """
    eta, edge = 1.0 / math.sqrt(steps), 0.5
    grid = np.linspace(-edge, edge, cells)
    width = float(grid[1] - grid[0])
    moved = grid - eta * np.clip(grid, -1.0, 1.0)
    kernel = norm.pdf((grid[:, None] - moved[None, :]) / (eta * noise)) / (eta * noise) * width
    law: Array = np.zeros(cells)
    law[cells // 2] = 1.0
    for _ in range(steps):
        law = kernel @ law
    # the last gradient also moves the state by plus or minus eta
    shift = eta / width
    left, right = (
        np.interp(np.arange(cells) + s, np.arange(cells), law, left=0.0, right=0.0) for s in (shift, -shift)
    )
    # (alpha, 4 alpha L^2 / (T sigma^2)) with L = 2, the norm of clip(w, -1, 1) plus or minus 1
    claimed = math.sqrt(8.0 * 2.0**2 / steps) / noise
    return float(np.abs(left - right).sum() / 2.0), float(2.0 * norm.cdf(claimed / 2.0) - 1.0)
