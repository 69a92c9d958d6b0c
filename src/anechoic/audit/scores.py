"""Audit by the scores of an attack of one's own: what they prove, whatever made them.

A score is any number that an attack gives to a canary: a loss, a likelihood ratio, a product of gradients.
Where each comes from a training of its own they prove rates of two kinds of error. Where all canaries were in
one training, each put in by a fair coin, the count of right guesses proves epsilon (Steinke, Nasr and
Jagielski, "Privacy auditing with one training run", 2023, Theorem 5.2 and its appendix D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import expit

from anechoic._validate import Array, finite_array, fraction
from anechoic.accounting.gaussian import gaussian_mu
from anechoic.audit.bounds import LowerBound, bounds_by_ranks, lower_proportion
from anechoic.plots.curves import Axis, Line, line_figure

#: Parts of the canaries of one run that are guessed, those with the outermost scores.
_GUESSED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class ScoreAudit:
    """What the scores of an attack prove.

    Attributes:
        epsilon, mu: lower bounds, on epsilon at `delta` and on the mu of a mu-GDP release.
        delta: of epsilon.
        auroc: estimated probability that a canary put in has the higher score; ties count half.
        without, with_canary: the scores, sorted, shapes (m0,) and (m1,).
    """

    epsilon: LowerBound
    mu: LowerBound
    delta: float
    auroc: float
    without: Array
    with_canary: Array

    def tpr_at(self, fpr: float) -> LowerBound:
        """Return the true positive rate at a false positive rate, with its lower bound.

        Args:
            fpr: estimated on the canaries left out, in (0, 1). The bound holds at the threshold that it
                gives, whose own false positive rate is an estimate.
        """
        m = len(self.without)
        threshold = self.without[m - 1 - int(fraction("fpr", fpr) * m)]
        found = int((self.with_canary > threshold).sum())
        bound = float(lower_proportion(found, len(self.with_canary), 1.0 - self.epsilon.confidence))
        return LowerBound(bound, self.epsilon.confidence, "Clopper-Pearson", found / len(self.with_canary))

    def plot(self) -> Any:
        """Draw the rates of the attack at every threshold, on logarithmic axes; a matplotlib `Figure`."""
        least = 1.0 / len(self.without)
        rates = np.unique(np.geomspace(least, 1.0 - least / 2, 60))
        curve = [float(self.tpr_at(rate).estimate or 0.0) for rate in rates]
        seen = [pair for pair in zip(rates.tolist(), curve, strict=True) if pair[1] > 0] or [(1.0, 1.0)]
        lines = [
            Line("this attack", "planned", [x for x, _ in seen], [y for _, y in seen], markers=False),
            Line("chance", "independent", [least, 1.0], [least, 1.0], markers=False),
        ]
        title = f"Rates of an attack; epsilon at least {self.epsilon.value:.3g} at delta {self.delta:g}"
        axes = (Axis(f"{kind} positive rate", log=True) for kind in ("false", "true"))
        return line_figure(lines, x=next(axes), y=next(axes), title=title)

    def __str__(self) -> str:
        sure, bound = f"with {self.epsilon.confidence:.0%} confidence", self.epsilon
        rows = [f"epsilon at least {bound.value:.4g} at delta {self.delta:g} {sure} ({bound.method})"]
        rows.append(f"mu at least {self.mu.value:.4g} {sure} ({self.mu.method})")
        for fpr in (0.001, 0.01, 0.1):
            if fpr * len(self.without) >= 1:
                rate = self.tpr_at(fpr)
                rows.append(f"TPR {rate.estimate:.3g} at FPR {fpr:g}, at least {rate.value:.3g} {sure}")
        rows.append(f"AUROC {self.auroc:.4f}; {len(self.with_canary)} canaries in, {len(self.without)} out")
        return "\n".join([*rows, "A weak attack proves little; it never shows that a guarantee holds."])


def from_scores(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    one_run: bool = False,
) -> ScoreAudit:
    """Bound epsilon and mu from below by the scores of an attack; a higher score says "was in".

    Args:
        in_scores, out_scores: of canaries that were in the data and that were not, shapes (m1,) and (m0,).
        delta: in (0, 1), at which epsilon is bounded.
        confidence: 1 - probability that a bound exceeds the truth; each of the two has it.
        one_run: whether all canaries were in one training, each put in by a fair coin of its own. Else scores
            must be independent, as those of one training each.

    Raises:
        ValueError: for scores that are not finite, or an argument out of range.

    Example:
        >>> import numpy as np
        >>> from anechoic.audit import from_scores
        >>> rng = np.random.default_rng(0)
        >>> found = from_scores(1.5 + rng.standard_normal(2000), rng.standard_normal(2000), delta=1e-5)
        >>> found.mu.value < 1.5
        True
    """
    high, low = np.sort(finite_array("in_scores", in_scores)), np.sort(finite_array("out_scores", out_scores))
    delta, confidence = fraction("delta", delta), fraction("confidence", confidence)
    if one_run:
        epsilon = _epsilon_of_one_run(low, high, delta, confidence)
        mu = gaussian_mu(epsilon.value, delta) if epsilon.value > 0 else 0.0
        bound = LowerBound(mu * (1 - 1e-9), confidence, "of that epsilon")
    else:
        epsilon, bound = bounds_by_ranks(low, high, delta=delta, confidence=confidence)
    auroc = float(scipy.stats.mannwhitneyu(high, low).statistic) / (len(high) * len(low))
    return ScoreAudit(epsilon, bound, delta, auroc, low, high)


def _epsilon_of_one_run(low: Array, high: Array, delta: float, confidence: float) -> LowerBound:
    """Lower bound by the count of right guesses, over several numbers of guesses (Bonferroni)."""
    scores, truth = np.concatenate([low, high]), np.repeat([False, True], [len(low), len(high)])
    m, failure, best = len(scores), (1.0 - confidence) / len(_GUESSED), 0.0
    order = np.lexsort((~truth, scores))  # equal scores count against the attack, at both ends
    for part in _GUESSED:
        each = int(part * m / 2)
        if each:
            right = int((~truth[order[:each]]).sum() + truth[order[-each:]].sum())
            best = max(best, _refuted(m, 2 * each, right, delta, failure))
    method = f"right guesses in one run of {m} canaries put in by fair coins"
    return LowerBound(best, confidence, method)


def _refuted(m: int, guesses: int, right: int, delta: float, failure: float) -> float:
    """Return the largest epsilon under which so many right guesses have at most probability `failure`."""

    def excess(epsilon: float) -> float:
        law = scipy.stats.binom(guesses, expit(epsilon))
        beyond = np.cumsum(law.pmf(np.arange(right - 1, -1, -1))) / np.arange(1, right + 1)
        return float(law.sf(right - 1) + 2 * m * delta * max(beyond.max(initial=0.0), 0.0)) - failure

    if excess(0.0) >= 0:
        return 0.0
    top = 1.0
    while excess(top) < 0:
        top *= 2
    return float(scipy.optimize.brentq(excess, 0.0, top, xtol=1e-9)) * (1 - 1e-8)
