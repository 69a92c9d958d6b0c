"""Paper 001, *Private Stochastic Convex Optimization* (2020): what is false in it, and what is true."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from anechoic._validate import Array
from anechoic.accounting import gaussian_epsilon
from anechoic.strategies import Identity
from anechoic.theory.ftrl import (
    anytime_excess,
    average_excess,
    contraction_rho,
    last_iterate_excess,
    last_iterate_rho,
    population_risk_orders,
)
from anechoic.theory.lq_noise import ExponentialPower, gaussian_clip_norm, lq_epsilon
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
            like="claimed (Theorem 5.4)",
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


def table_1() -> Exhibit:
    """Table 1 of paper 001: its orders as numbers, for three sizes of a problem."""
    sizes = ((10_000, 100, 1.0), (10_000, 10_000, 1.0), (1_000_000, 1000, 0.1))
    rows: list[tuple[str, ...]] = [
        ("class, and whose", "order", *(f"n = {n:,}, d = {d:,}, ε = {e:g}" for n, d, e in sizes))
    ]
    known = [population_risk_orders(*size) for size in sizes]
    best, sampled = ([orders[k] for orders in known] for k in ("best known", "noisy SGD, sampled"))
    for name, order, values in (
        ("smooth, convex: Feldman et al. (2019), the paper", "LD max(1/√n, √d/(εn))", best),
        ("convex: Bassily et al. (2014)", "L²D² d^¼ / √(nε)", sampled),
        ("convex: Bassily et al. (2019), Feldman et al. (2019), the paper", "LD max(1/√n, √d/(εn))", best),
        (
            "λ-strongly convex: Bassily et al. (2014)",
            "L² √d / (λnε)",
            [math.sqrt(d) / (n * e) for n, d, e in sizes],
        ),
        (
            "λ-strongly convex, smooth or not: Feldman et al. (2019), as printed (errata, P24)",
            "(L²/λ) (1/n + d/(ε²n))",
            [1 / n + d / (e**2 * n) for n, d, e in sizes],
        ),
        (
            "the same, right",
            "(L²/λ) (1/n + d/(ε²n²))",
            [1 / n + d / (e * n) ** 2 for n, d, e in sizes],
        ),
    ):
        rows.append((name, order, *(f"{value:.3g}" for value in values)))
    remarks = (
        "Orders, without constants and logarithms, for L = D = λ = 1. No number here is a guarantee.",
        "The paper: Private FTRL attains the best order in linear time, smooth or not. Its proof of privacy"
        " does not hold (errata, P1, P22). With a sound account of all its iterates its order is that of the"
        " mechanism: `benchmarks/ftrl.py` measures it. No learner of this library is made for strong"
        " convexity.",
    )
    return Exhibit(
        "001-table-1", "Excess population risk", f"{PAPER}, Table 1", table=tuple(rows), remarks=remarks
    )


#: Runs of `regret`, and its seeds.
RUNS = 4000


def regret() -> Exhibit:
    """Theorems 5.1, A.3 and A.4: excess risk of the average and of the last iterate, run and bounded."""
    std, steps = 1.0, 4096
    bound, distance = math.sqrt(1.0 + std**2), math.sqrt(0.125)  # |w - 1/2| from 0, Psi = w^2 / 2
    shown = np.array([2**k for k in range(2, 13)])
    given = {"gradient_bound": bound, "distance": distance}
    rng = np.random.default_rng(0)
    fixed: dict[str, list[Array]] = {"average": [], "last": []}
    for horizon in shown:  # the fixed rate knows T
        eta = distance / (bound * math.sqrt(horizon))
        w, total = np.zeros(RUNS), np.zeros(RUNS)
        for _ in range(horizon):
            last = np.abs(w - 0.5)
            total += last
            w = w - eta * (np.sign(w - 0.5) + std * rng.standard_normal(RUNS))
        fixed["average"].append(total / horizon)
        fixed["last"].append(last)
    y, falling, best = np.zeros(RUNS), [], set(shown.tolist())
    w = np.zeros(RUNS)
    for t in range(1, steps + 1):  # the rate of step t falls, and FTRL weighs all gradients with it
        if t in best:
            falling.append(np.abs(w - 0.5))
        y += np.sign(w - 0.5) + std * rng.standard_normal(RUNS)
        w = -distance / (bound * math.sqrt(t + 1)) * y
    x = shown.astype(float)
    panels = []
    for title, runs, name, values in (
        (
            "Average, fixed rate",
            fixed["average"],
            "Eq. (4)",
            [average_excess(int(t), **given) for t in shown],
        ),
        (
            "Last, fixed rate",
            fixed["last"],
            "Theorem A.3",
            [last_iterate_excess(int(t), **given) for t in shown],
        ),
        ("Last, falling rate", falling, "order of A.4", [anytime_excess(int(t), **given) for t in shown]),
    ):
        means = np.array([r.mean() for r in runs])
        errors = np.array([r.std(ddof=1) / math.sqrt(RUNS) for r in runs])
        curves = (
            Curve(name, x, np.array(values), dashed=True),
            Curve(f"{RUNS} runs", x, means, points=True, error=errors),
        )
        panels.append(Panel(title, "T", "E F(w) − F(w*)", curves, "xy"))
    shares = [float(np.max(p.curves[1].y / p.curves[0].y)) for p in panels]
    remarks = (
        "F(w) = |w − 1/2|, which is not smooth; gradients sign(w − 1/2) + N(0, 1), so that G² = 2; Ψ = w²/2,"
        " D² = 1/8. The rates are those of the theorems, D/(G√T) and D/(G√t).",
        "The paper: the last iterate of FTRL, without averaging, has excess O(GD log(T)/√T). The bound with"
        f" its constants (errata, P16) holds here: the average has at most {shares[0]:.3f} of its bound, the"
        f" last iterate {shares[1]:.3f}. Theorem A.4 names no constant: its order with the constant 1 is"
        f" {1 / shares[2]:.1f} times the runs or more.",
    )
    return Exhibit(
        "001-regret",
        "Excess of the average and of the last iterate",
        f"{PAPER}, Theorems 5.1, A.3 and A.4",
        tuple(panels),
        remarks=remarks,
    )


def lq() -> Exhibit:
    """The ℓp/ℓq algorithm (Theorem 4.3): what its noise costs, beside the claim and Gaussian noise."""
    orders = 1.0 + np.geomspace(0.02, 0.3, 8)
    q, d, scale = 3.0, 100, 2.0
    noise = ExponentialPower(q, scale)
    claimed = np.full(len(orders), 1.0 / scale**q)
    exact = np.array([noise.worst_divergence(float(a), 1.0, d) for a in orders])
    crude = np.array([noise.lemma_c1(float(a), 1.0, d) for a in orders])
    one = (
        Curve("Lemma C.1 as printed", orders, claimed, dashed=True),
        Curve("Lemma C.1, its sign right", orders, crude),
        Curve("computed", orders, exact),
    )
    stds, delta = np.geomspace(1.0, 16.0, 5), 1e-6
    curves = []
    for power in (3.0, 6.0):
        unit = ExponentialPower(power, 1.0).std
        found = [
            lq_epsilon(Identity(1), ExponentialPower(power, std / unit), norm=1.0, dimension=d, delta=delta)
            for std in stds
        ]
        gauss = [gaussian_epsilon(delta, gaussian_clip_norm(1.0, power, d) / std) for std in stds]
        label = f"q = {power:g}"
        curves.append(Curve(f"{label}, its own noise", stds, np.array(found)))
        curves.append(
            Curve(f"{label}, Gaussian", stds, np.array(gauss), dashed=True, like=f"{label}, its own noise")
        )
    panels = (
        Panel(f"One step, q = {q:g}, d = {d}, a = 1, σ = {scale:g}", "order α", "$D_α$", one, "y"),
        Panel("All iterates, d = 100, C = I, δ = 1e-6", "std of one entry", "ε", tuple(curves), "xy"),
    )
    ratio = curves[0].y / curves[1].y
    wide = curves[2].y / curves[3].y
    remarks = (
        "Gradients are bounded by 1 in ℓ_q, the density of the noise is proportional to exp(−‖ξ‖_q^q/σ^q)."
        " The algorithm runs as `theory.PrivateFTRL` with a `theory.LqMechanism`; its account covers all"
        " iterates, by numerical integrals (`theory.lq_noise`).",
        f"The paper's Lemma C.1 claims (a/σ)^q = {claimed[0]:.3f}; the divergence is"
        f" {exact[0] / claimed[0]:.1f} to {exact[-1] / claimed[-1]:.1f} times that (errata, P3). Theorem 4.3"
        " divides it by T^(q−1) too, which fails for the reason of P1.",
        "Gaussian noise of equal variance, for the 2-norm that the ℓ_q ball of 100 entries holds, has"
        f" {1 / ratio.max():.2f} to {1 / ratio.min():.2f} times the ε of the ℓ_q noise for q = 3, and"
        f" {1 / wide.max():.2f} to {1 / wide.min():.2f} times for q = 6. Part of it is that the ℓ_q account"
        " goes by Rényi divergences, and the Gaussian one is exact.",
    )
    return Exhibit("001-lq", "Gradients bounded in ℓ_q", f"{PAPER}, Theorem 4.3", panels, remarks=remarks)
