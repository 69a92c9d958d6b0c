"""Theorems that the guarantee of a mechanism rests on, its accountant's and sensitivity's aside."""

from __future__ import annotations

from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Mechanism
from anechoic.statement.theorem import Theorem

GAUSSIAN = Theorem(
    "Gaussian mechanism, adaptive gradients (monograph, Theorems 1.11, 1.14 and 3.9)",
    "amplification.md#gaussian-mechanism",
)
ADJACENCY = Theorem("Adjacency: what is doubled, what is refused", "sensitivity.md#adjacency")
RECTANGULAR = Theorem("Strategies with more rows than steps", "sensitivity.md#more-rows-than-steps")
VERIFIED = Theorem("Monte Carlo with a confidence bound as a part of delta", "amplification.md#monte-carlo")
HORIZON_FREE = Theorem("Any number of releases at the limiting sensitivity", "streams.md#without-a-last-step")
USER_LEVEL = Theorem("Units that own several examples", "sensitivity.md#user-level")
FLOAT_SAFE = Theorem("Integer sums and exactly rounded noise", "noise.md#exact-rounding")
FLOAT_SUMS = Theorem("How far rounding moves a sum of floating-point numbers", "noise.md#float-sums")
COMPOSITION = Theorem("Several mechanisms on the same data", "amplification.md#composition")
SELECTION = Theorem("The best of a random number of runs", "budget.md#selection")


def theorems_of(mechanism: Mechanism) -> tuple[Theorem, ...]:
    """What the guarantee of this mechanism rests on, the theorem that gives epsilon first."""
    m, accountant = mechanism, mechanism.accountant
    found = [GAUSSIAN if accountant is None else accountant.theorem]
    if m.accounting != "deterministic":
        found.append(VERIFIED)
    if accountant is not None:
        found.append(GAUSSIAN)  # mu and rho, and what is not amplified
    if m.sensitivity.theorem is not None:
        found.append(m.sensitivity.theorem)
    found.append(ADJACENCY)
    if m.strategy.rows != m.strategy.n:
        found.append(RECTANGULAR)
    if m.unit != "example":
        found.append(USER_LEVEL)
    found.append(FLOAT_SUMS if m.grid_bits is None else FLOAT_SAFE)
    return tuple(found)


def theorems_of_endless(mechanism: EndlessMechanism) -> tuple[Theorem, ...]:
    """What the guarantee of a mechanism without a last step rests on."""
    units = (USER_LEVEL,) if mechanism.unit != "example" else ()
    return (HORIZON_FREE, GAUSSIAN, ADJACENCY, *units, FLOAT_SUMS)
