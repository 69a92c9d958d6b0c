"""Mechanisms trained against one another on one data set: arms, trials, and what is kept of each on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from anechoic.batches.base import batches_of
from anechoic.errors import CheckpointError
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize import dense
from anechoic.planning.compare import plan
from anechoic.sampling import FixedOrder, Poisson
from anechoic.sampling.base import Sampling
from anechoic.strategies import Identity
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum, restart_differences
from studies.published.together import Floats, Indices, accuracies, train_together

#: Settings that say which outcomes there are, and not what one of them is.
VARIED = ("batch_sizes", "periods", "trials", "left_out")
#: Parameters whose noise is made at once: bounds the memory of double precision.
COLUMNS = 1024


@dataclass(frozen=True)
class Images:
    """Training and test set: features (examples, d) float32, labels int64 from 0."""

    features: Floats
    labels: Indices
    test_features: Floats
    test_labels: Indices
    classes: int = 10


@dataclass(frozen=True)
class Contest:
    """Settings of the experiment; the defaults are those of paper 004, Appendix H.2.

    Attributes:
        steps: T.
        batch_sizes: one pass and sixteen over 60,000 examples.
        periods: tau of DP-MF+.
        epsilons: the printed grid is {0.01, 0.1, …, 100}; its text names 0.31 and 31, hence half decades.
        delta, rate, clip_norm, trials: of every run.
        left_out: batch sizes and arms that are not trained.
    """

    steps: int = 2048
    batch_sizes: tuple[int, ...] = (29, 469)
    periods: tuple[int, ...] = (2, 8, 32, 128, 512, 2048)
    epsilons: tuple[float, ...] = (0.01, 0.031, 0.1, 0.31, 1.0, 3.1, 10.0, 31.0, 100.0)
    delta: float = 1e-6
    rate: float = 0.5
    clip_norm: float = 1.0
    trials: int = 5
    left_out: tuple[tuple[int, str], ...] = ()


MF, SGD, PLANNED, SAMPLED = "DP-MF", "DP-SGD, Poisson", "planned, fixed order", "planned, sampled"
CLIPPED, PLAIN = "no noise", "no noise, not clipped"


def plus(period: int) -> str:
    """Name of the arm of DP-MF+ with this tau."""
    return f"DP-MF⁺, τ = {period}"


def arms(contest: Contest, batch_size: int) -> tuple[str, ...]:
    """Names of the arms, in the order of the table."""
    every = (CLIPPED, PLAIN, MF, *(plus(period) for period in contest.periods), SGD, PLANNED, SAMPLED)
    return tuple(arm for arm in every if (batch_size, arm) not in contest.left_out)


@dataclass(frozen=True)
class Scores:
    """Test accuracy of the last iterate by batch size, arm and epsilon: one number a trial.

    Arms without noise have one entry, under infinity.
    """

    contest: Contest
    values: Mapping[tuple[int, str, float], tuple[float, ...]]

    def mean(self, batch_size: int, arm: str, epsilon: float) -> float:
        return float(np.mean(self.values[batch_size, arm, epsilon]))

    def error(self, batch_size: int, arm: str, epsilon: float) -> float:
        """Standard error of the mean; nan for one trial."""
        found = self.values[batch_size, arm, epsilon]
        return float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else float("nan")


def mechanisms(contest: Contest, examples: int, batch_size: int, arm: str) -> dict[float, Mechanism]:
    """The mechanism of an arm at every epsilon; none for the arms without noise.

    Without amplification a strategy that is best at one epsilon is best at all, as the error is a product.
    """
    order = FixedOrder(examples, batch_size, steps=contest.steps)
    given = {
        "examples": examples,
        "batch_size": batch_size,
        "steps": contest.steps,
        "delta": contest.delta,
        "clip_norm": contest.clip_norm,
    }

    def made(strategy: Strategy, sampling: Sampling) -> dict[float, Mechanism]:
        return {
            epsilon: calibrate(
                strategy, sampling=sampling, epsilon=epsilon, delta=contest.delta, clip_norm=contest.clip_norm
            )
            for epsilon in contest.epsilons
        }

    if arm in (CLIPPED, PLAIN):
        return {}
    if arm == SGD:
        return made(Identity(contest.steps), Poisson(examples, batch_size, contest.steps))
    if arm == PLANNED:
        chosen = plan(**given, epsilon=contest.epsilons[0], random_sampling=False)  # type: ignore[arg-type]
        return made(chosen.mechanism.strategy, chosen.mechanism.sampling)
    if arm == SAMPLED:
        return {
            epsilon: plan(**given, epsilon=epsilon).mechanism  # type: ignore[arg-type]
            for epsilon in contest.epsilons
        }
    workload = prefix_sum(contest.steps)
    periods = {plus(period): period for period in contest.periods}
    if arm in periods:
        workload = restart_differences(workload, period=periods[arm])
    return made(dense(workload, participation=order.participation).strategy, order)


def compete(
    images: Images,
    contest: Contest,
    folder: Path,
    *,
    said: Callable[[str], None] = lambda line: None,
) -> Scores:
    """Train every arm, or read from `folder` what was trained before with the same settings and data.

    A file holds one arm at one batch size in one trial. A run that is stopped goes on where it was.
    Files know settings and data, not the version of this library: for new strategies take an empty folder.

    Args:
        images: the data.
        contest: the settings.
        folder: of the outcomes; made if it is not there.
        said: called with a line for every arm and trial.

    Raises:
        CheckpointError: for a file in `folder` that is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[tuple[int, str, float], list[float]] = {}
    for batch_size in contest.batch_sizes:
        for arm in arms(contest, batch_size):
            made: dict[float, Mechanism] | None = None
            for trial in range(contest.trials):
                file = folder / f"{batch_size}-{letters(arm)}-{trial}.json"
                mark = _mark(images, contest, batch_size, arm, trial)
                found = kept(file, mark)
                if found is None:
                    if made is None:
                        made = mechanisms(contest, len(images.labels), batch_size, arm)
                    found = dict(_trained(images, contest, batch_size, arm, made, trial))
                    keep(file, mark, found)
                for epsilon, accuracy in found.items():
                    values.setdefault((batch_size, arm, epsilon), []).append(accuracy)
                said(f"{batch_size} {arm}, trial {trial}: " + ", ".join(f"{a:.4f}" for a in found.values()))
    return Scores(contest, {key: tuple(found) for key, found in values.items()})


def _trained(
    images: Images,
    contest: Contest,
    batch_size: int,
    arm: str,
    made: Mapping[float, Mechanism],
    trial: int,
) -> Iterator[tuple[float, float]]:
    """(epsilon, accuracy): models of one strategy and one scheme are trained together."""
    key = hashlib.sha256(f"anechoic contest: {batch_size}; {trial}".encode()).digest()
    if not made:
        order = FixedOrder(len(images.labels), batch_size, steps=contest.steps)
        clip_norm = None if arm == PLAIN else contest.clip_norm
        yield float("inf"), _run(images, contest, order, key, clip_norm)[0]
        return
    for _, run in groupby(made.items(), key=lambda item: (id(item[1].strategy), item[1].sampling)):
        epsilons, group = zip(*run, strict=True)
        first: Mechanism = group[0]
        scored = _run(
            images,
            contest,
            first.sampling,
            key,
            contest.clip_norm,
            noise_rows(first.strategy, images.features.shape[1] * (images.classes - 1), trial),
            [mechanism.noise_std * mechanism.clip_norm for mechanism in group],
        )
        yield from zip(epsilons, scored, strict=True)


def _run(
    images: Images,
    contest: Contest,
    sampling: Sampling,
    key: bytes,
    clip_norm: float | None,
    noise: Floats | None = None,
    scales: list[float] | None = None,
) -> list[float]:
    weights = train_together(
        images.features,
        images.labels,
        batches_of(sampling, key).batch,
        steps=contest.steps,
        classes=images.classes,
        batch_size=sampling.expected_batch_size,
        rate=contest.rate,
        clip_norm=clip_norm,
        noise=noise,
        scales=scales or [0.0],
    )
    return accuracies(weights, images.test_features, images.test_labels)


def noise_rows(strategy: Strategy, width: int, trial: int) -> Floats:
    """Rows of C^-1 Z of std 1, shape (n, width); Z is the same for every arm of a trial: arms are paired.

    The generator is fast and fixed by the trial: for figures that can be reproduced, never for a guarantee.
    """
    noise = np.empty((strategy.n, width), dtype=np.float32)
    for start in range(0, width, COLUMNS):
        stop = min(width, start + COLUMNS)
        rng = np.random.default_rng([trial, start])
        noise[:, start:stop] = strategy.correlate(rng.standard_normal((strategy.rows, stop - start)))
    return noise


def _mark(images: Images, contest: Contest, batch_size: int, arm: str, trial: int) -> str:
    """What an outcome depends on, as a digest."""
    settings = {name: value for name, value in asdict(contest).items() if name not in VARIED}
    settings |= {"batch_size": batch_size, "arm": arm, "trial": trial}
    data = hashlib.sha256()
    for array in (images.features[:16], images.labels, images.test_features[:16], images.test_labels):
        data.update(np.ascontiguousarray(array).tobytes())
    return hashlib.sha256(
        json.dumps([settings, images.features.shape, data.hexdigest()]).encode()
    ).hexdigest()


def letters(arm: str) -> str:
    """The name of an arm in a file name."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in arm)


def keep(file: Path, mark: str, found: Mapping[float, float]) -> None:
    """Write accuracy by epsilon, whole or not at all; `mark` says of which settings."""
    draft = file.with_suffix(".part")
    draft.write_text(json.dumps({"mark": mark, "accuracy": list(found.items())}), encoding="utf-8")
    os.replace(draft, file)


def kept(file: Path, mark: str) -> dict[float, float] | None:
    """Accuracy by epsilon, where the file is there and of these settings."""
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["mark"] != mark:
            return None
        return {float(epsilon): float(accuracy) for epsilon, accuracy in record["accuracy"]}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}. Delete it, and the run starts again.") from error
