"""Which page of docs/proofs proves which number: the one table, read by statements and by tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anechoic.endless import EndlessMechanism
    from anechoic.mechanism import Mechanism


@dataclass(frozen=True)
class Proof:
    """A theorem that a statement relies on.

    Attributes:
        title: what it gives, and its source.
        page: file in docs/proofs, with the section where the page has several.
    """

    title: str
    page: str


GAUSSIAN = Proof(
    "Gaussian mechanism, adaptive gradients (monograph, Theorems 1.11, 1.14 and 3.9)",
    "gaussian-unamplified.md",
)
ADJACENCY = Proof("Adjacency: what is doubled, what is refused", "adjacency.md")
RECTANGULAR = Proof("Strategies with more rows than steps", "rectangular.md")
VERIFIED = Proof("Monte Carlo with a confidence bound that is a part of delta", "verified-monte-carlo.md")
HORIZON_FREE = Proof("Any number of releases at the limiting sensitivity", "horizon-free.md")
USER_LEVEL = Proof("Units that own several examples", "user-level.md")
FLOAT_SAFE = Proof("Integer sums and exactly rounded noise", "float-safe.md")
FLOAT_SUMS = Proof("How far rounding moves a sum of floating-point numbers", "float-safe.md#float-sums")
COMPOSITION = Proof("Several mechanisms on the same data", "composition.md")

#: Accountants, by the name of their class.
ACCOUNTANTS = {
    "PoissonAccountant": Proof("Cyclic Poisson sampling (monograph, Theorem 3.21)", "cyclic-poisson.md"),
    "OverlappingAccountant": Proof(
        "Poisson sampling with overlapping bands (after arXiv 2310.15526)", "conditional-composition.md"
    ),
    "BallsInBinsAccountant": Proof("Balls in bins (arXiv 2410.06266, Lemma 3.2)", "balls-in-bins.md"),
    "MinSepAccountant": Proof("Min-sep sampling (arXiv 2602.09338)", "min-sep-sampling.md"),
    "RandomAllocationAccountant": Proof("Random allocation (arXiv 2502.08202)", "random-allocation.md"),
}

#: Sensitivity methods: the first pattern that is found in `Sensitivity.method` decides. Bounds that are made
#: of others ("largest column scale times …") come first.
METHODS = (
    (r"^largest column scale times|scheduled row sums of the unscaled", "Column scales", "column-scales"),
    (r"even and odd epochs|over epochs|pair of epochs|adjacent epochs", "Once per epoch", "once-per-epoch"),
    (r"largest column norm \(one participation\)", "One participation (Theorem 1.14)", "one-participation"),
    (r"3\.16\(c\) of the non-increasing majorant", "A majorant (Lemma 3.16 c)", "majorant"),
    (r"3\.16\(c\)", "Toeplitz, falling coefficients (Lemma 3.16 c)", "falling-coefficients"),
    (r"later and farther apart", "Products that fall from the separation on", "falling-products"),
    (r"Algorithm 3\.2", "Participations that do not interact (Algorithm 3.2)", "no-interaction"),
    (r"do not interact\)$", "Participations that do not interact (Lemma 3.16 b)", "no-interaction"),
    (r"nodes of a tree|nodes of each height", "Trees (Lemma 3.15 b)", "trees"),
    (r"only neighbouring", "Only neighbouring participations interact", "neighbours"),
    (r"semidefinite", "Mixed signs, by semidefinite duality", "semidefinite-duality"),
    (r"largest eigenvalue", "Mixed signs, by the largest eigenvalue", "semidefinite-duality"),
    (r"restarts a pattern can touch", "Restarts", "restarts"),
    (r"enumeration of cycles|3\.15\(b\)", "Non-negative products (Lemma 3.15 b)", "non-negative-products"),
    (r"Algorithm 4|at each separation|3\.15 ?\(?a\)", "Sums of |C^T C| (Lemma 3.15 a)", "absolute-sums"),
    (r"triangle inequality|no listed step", "Triangle inequality over columns", "triangle"),
    (r"limit of the column norms", "Limiting sensitivity", "limiting"),
)


def sensitivity_proof(method: str) -> Proof | None:
    """The section of docs/proofs/sensitivity.md for a `Sensitivity.method`; None for one from elsewhere."""
    for pattern, title, section in METHODS:
        if re.search(pattern, method):
            return Proof(f"Sensitivity: {title}", f"sensitivity.md#{section}")
    return None


def proofs_of(mechanism: Mechanism) -> tuple[Proof, ...]:
    """What the guarantee of this mechanism rests on, the theorem that gives epsilon first."""
    m, accountant = mechanism, mechanism.accountant
    found = [GAUSSIAN if accountant is None else ACCOUNTANTS.get(type(accountant).__name__)]
    if m.accounting != "deterministic":
        found.append(VERIFIED)
    if accountant is not None:
        found.append(GAUSSIAN)  # mu and rho, and what is not amplified
    found += [sensitivity_proof(m.sensitivity.method), ADJACENCY]
    if m.strategy.rows != m.strategy.n:
        found.append(RECTANGULAR)
    if m.unit != "example":
        found.append(USER_LEVEL)
    found.append(FLOAT_SUMS if m.grid_bits is None else FLOAT_SAFE)
    return tuple(proof for proof in found if proof is not None)


def proofs_of_endless(mechanism: EndlessMechanism) -> tuple[Proof, ...]:
    """What the guarantee of a mechanism without a last step rests on."""
    units = (USER_LEVEL,) if mechanism.unit != "example" else ()
    return (HORIZON_FREE, GAUSSIAN, ADJACENCY, *units, FLOAT_SUMS)
