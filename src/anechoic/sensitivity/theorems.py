"""Theorems that give a sensitivity, with their sections of docs/proofs/sensitivity.md."""

from __future__ import annotations

from anechoic.statement.theorem import Theorem


def _theorem(title: str, section: str) -> Theorem:
    return Theorem(f"Sensitivity: {title}", f"sensitivity.md#{section}")


COLUMN_SCALES = _theorem("Column scales", "column-scales")
ONCE_PER_EPOCH = _theorem("Once per epoch", "once-per-epoch")
ONE_PARTICIPATION = _theorem("One participation (Theorem 1.14)", "one-participation")
MAJORANT = _theorem("A majorant (Lemma 3.16 c)", "majorant")
FALLING_COEFFICIENTS = _theorem("Toeplitz, falling coefficients (Lemma 3.16 c)", "falling-coefficients")
FALLING_PRODUCTS = _theorem("Products that fall from the separation on", "falling-products")
SCHEDULE = _theorem("Participations that do not interact (Algorithm 3.2)", "no-interaction")
NO_INTERACTION = _theorem("Participations that do not interact (Lemma 3.16 b)", "no-interaction")
TREES = _theorem("Trees (Lemma 3.15 b)", "trees")
NEIGHBOURS = _theorem("Only neighbouring participations interact", "neighbours")
SEMIDEFINITE = _theorem("Mixed signs, by semidefinite duality", "semidefinite-duality")
EIGENVALUE = _theorem("Mixed signs, by the largest eigenvalue", "semidefinite-duality")
RESTARTS = _theorem("Restarts", "restarts")
NONNEGATIVE_PRODUCTS = _theorem("Non-negative products (Lemma 3.15 b)", "non-negative-products")
ABSOLUTE_SUMS = _theorem("Sums of |C^T C| (Lemma 3.15 a)", "absolute-sums")
TRIANGLE = _theorem("Triangle inequality over columns", "triangle")
LIMITING = _theorem("Limiting sensitivity", "limiting")
