"""Figure 3 of paper 004: DP-MF, DP-MF+ and DP-SGD trained on images, beside what this library plans."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from studies.data.fashion_mnist import fashion_mnist
from studies.published.contest import (
    CLIPPED,
    MF,
    PLAIN,
    PLANNED,
    SAMPLED,
    SGD,
    Contest,
    Images,
    Scores,
    arms,
    compete,
    plus,
)
from studies.published.descent import PAPER
from studies.published.exhibit import Curve, Exhibit, Panel

#: Differences of more standard errors than this are told as differences.
CLEAR = 2.0


def images_in(directory: str) -> Images:
    """The four files of Fashion-MNIST, or of another set in their format, as rows of pixels in [0, 1]."""
    train, labels, test, test_labels = fashion_mnist(directory)
    return Images(train.reshape(len(train), -1), labels, test.reshape(len(test), -1), test_labels)


def figure_3(directory: str, folder: Path, contest: Contest | None = None) -> Exhibit:
    """DP-MF, DP-MF+, DP-SGD and planned mechanisms trained on images (slow: a quarter of an hour).

    Args:
        directory: folder of the four files.
        folder: of the outcomes so far; a run that was stopped goes on from them.
        contest: settings; None for those of the paper.
    """
    images = images_in(directory)
    scores = compete(images, contest or Contest(), folder, said=print)
    return drawn(scores, len(images.labels))


def drawn(scores: Scores, examples: int) -> Exhibit:
    """Figure, table and what became of the paper's claims."""
    contest = scores.contest
    last = plus(contest.periods[-1])
    panels = []
    for chosen in ((MF, last, SGD, PLANNED, SAMPLED), (MF, *map(plus, contest.periods))):
        for size in contest.batch_sizes:
            what = "methods" if SGD in chosen else "τ"
            curves = [_curve(scores, size, arm) for arm in chosen if arm in arms(contest, size)]
            curves += [_level(scores, size, arm) for arm in (CLIPPED, PLAIN) if what == "methods"]
            panels.append(Panel(f"batches of {size}: {what}", "ε", "test accuracy", tuple(curves), "x"))
    return Exhibit(
        "004-3",
        "DP-MF, DP-MF⁺ and DP-SGD trained",
        f"{PAPER}, Figure 3 (a) and (b), on other data",
        tuple(panels),
        _table(scores),
        (_setting(scores, examples), *(_claims(scores, size) for size in contest.batch_sizes)),
    )


def _curve(scores: Scores, size: int, arm: str) -> Curve:
    epsilons = scores.contest.epsilons
    means = np.array([scores.mean(size, arm, epsilon) for epsilon in epsilons])
    errors = np.array([scores.error(size, arm, epsilon) for epsilon in epsilons])
    return Curve(arm, np.array(epsilons), means, error=errors)


def _level(scores: Scores, size: int, arm: str) -> Curve:
    ends = np.array([scores.contest.epsilons[0], scores.contest.epsilons[-1]])
    return Curve(arm, ends, np.full(2, scores.mean(size, arm, math.inf)), dashed=True)


def _table(scores: Scores) -> tuple[tuple[str, ...], ...]:
    contest = scores.contest
    rows = [("batch", "noise", *(f"ε = {epsilon:g}" for epsilon in contest.epsilons))]
    for size in contest.batch_sizes:
        for arm in arms(contest, size):
            if arm in (CLIPPED, PLAIN):
                rows.append((str(size), arm, *[_cell(scores, size, arm, math.inf)] * len(contest.epsilons)))
            else:
                rows.append((str(size), arm, *(_cell(scores, size, arm, e) for e in contest.epsilons)))
    return tuple(rows)


def _cell(scores: Scores, size: int, arm: str, epsilon: float) -> str:
    return f"{scores.mean(size, arm, epsilon):.4f} ± {scores.error(size, arm, epsilon):.4f}"


def _setting(scores: Scores, examples: int) -> str:
    contest = scores.contest
    return (
        f"Test accuracy of the last iterate, mean and standard error of {contest.trials} trials, on"
        f" {examples:,} training images (Fashion-MNIST; the paper has MNIST, so that levels cannot be"
        f" compared, only who leads). T = {contest.steps}, clip norm {contest.clip_norm:g}, learning rate"
        f" {contest.rate:g}, δ = {contest.delta:g}; multinomial logistic model with one class as"
        " reference, which has the paper's 7,056 parameters. Batches come in one fixed order with noise"
        " that is not amplified, and by Poisson sampling for DP-SGD; `planned` is what `plan` chooses for a"
        " fixed order, `planned, sampled` what it chooses where batches may be drawn. Factorisations are"
        " those of `optimize.dense`, for the participation of the run, certified to 10⁻⁵ (one pass) or"
        " 10⁻⁴. In a trial all arms share the normal numbers behind their noise, and those of a fixed order"
        " their batches, so that differences of two arms have smaller errors than the two."
    )


def _gain(scores: Scores, size: int, arm: str, rival: str, epsilon: float) -> tuple[float, float]:
    """Mean and standard error of the difference, trial by trial."""
    pairs = np.subtract(scores.values[size, arm, epsilon], scores.values[size, rival, epsilon])
    spread = float(np.std(pairs, ddof=1) / math.sqrt(len(pairs))) if len(pairs) > 1 else math.nan
    return float(np.mean(pairs)), spread


def _against(scores: Scores, size: int, arm: str, rival: str) -> str:
    """At which epsilons an arm is clearly better, and clearly worse, than another."""
    better: list[str] = []
    worse: list[str] = []
    for epsilon in scores.contest.epsilons:
        mean, spread = _gain(scores, size, arm, rival, epsilon)
        if abs(mean) > CLEAR * spread:
            (better if mean > 0 else worse).append(f"{epsilon:g}")
    return f"{arm} against {rival}: better at ε = {_listed(better)}, worse at {_listed(worse)}"


def _listed(values: list[str]) -> str:
    return ", ".join(values) if values else "none"


def _claims(scores: Scores, size: int) -> str:
    contest = scores.contest
    last = plus(contest.periods[-1])
    ups = [
        f"{epsilon:g}"
        for epsilon in contest.epsilons
        if all(np.diff([scores.mean(size, plus(period), epsilon) for period in contest.periods]) >= 0)
    ]
    best = [
        f"{epsilon:g}: {max(contest.periods, key=lambda p: scores.mean(size, plus(p), epsilon))}"
        for epsilon in contest.epsilons
    ]
    top = max(scores.mean(size, last, epsilon) for epsilon in contest.epsilons)
    says = [
        f"Batches of {size}, differences of more than {CLEAR:g} standard errors (paired).",
        "The paper: DP-MF⁺ improves monotonically with τ. Here the means rise with τ at every step for"
        f" ε = {_listed(ups)}; the best τ by ε is {', '.join(best)}.",
        f"The paper: τ = T consistently outperforms DP-MF. Here {_against(scores, size, last, MF)}.",
        f"The paper: DP-MF beats DP-SGD from some ε on. Here {_against(scores, size, MF, SGD)}.",
        f"The paper: DP-MF⁺ beats DP-SGD nearly everywhere. Here {_against(scores, size, last, SGD)}.",
        "The paper: nobody reaches the baseline without privacy, because of clipping. Here the best of"
        f" {last} is {top:.4f}, the same training without noise has"
        f" {scores.mean(size, CLIPPED, math.inf):.4f}, without clipping too"
        f" {scores.mean(size, PLAIN, math.inf):.4f}.",
        f"Beside them: {_against(scores, size, PLANNED, MF)}; {_against(scores, size, PLANNED, last)};"
        f" {_against(scores, size, PLANNED, SGD)}.",
    ]
    if SAMPLED in arms(contest, size):
        found = (_against(scores, size, SAMPLED, rival) for rival in (SGD, last))
        says.append(f"Where batches may be drawn: {'; '.join(found)}.")
    says += [f"Not trained here: {arm}." for left, arm in contest.left_out if left == size]
    return " ".join(says)
