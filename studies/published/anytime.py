"""Figure 4 of paper 000 on packaged data: noise for any horizon against noise that is optimised for one.

And Table 2 of paper 004, with the same clients.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize import dense
from anechoic.sampling import FixedOrder, Poisson
from anechoic.sampling.base import Sampling
from anechoic.strategies import Identity, Toeplitz, Tree
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum, restart_differences
from studies.federated.population import Population
from studies.federated.tasks import DocstringSections
from studies.published.clients import Rounds, federate, schedule
from studies.published.contest import Images, keep, kept, letters, noise_rows
from studies.published.correlated import PAPER
from studies.published.descent import PAPER as DESCENT
from studies.published.exhibit import Curve, Exhibit, Panel
from studies.published.together import Floats, accuracies, train_together
from studies.published.training import images_in
from studies.roots import damped, restarted

SGD, TREE, ROOT, NU, ME = "DP-SGD, sampled", "tree × S", "root × S (optimal CC)", "ν-DP-FTRL", "ME (dense)"
ARMS = (SGD, TREE, ROOT, NU, ME)
SILENT = "not private, clipped"
CLEAR = 2.0  # differences of more standard errors than this are told as differences

#: Accuracy by arm, epsilon (or noise multiplier) and learning rate.
Found = dict[tuple[str, float, float], float]
#: Trains one arm in one trial: (arm, trial, rates by epsilon) -> accuracy by (epsilon, rate).
Train = Callable[[str, int, Mapping[float, tuple[float, ...]]], dict[tuple[float, float], float]]


@dataclass(frozen=True)
class Setting:
    """Of one panel.

    Attributes:
        epsilons, delta: of the guarantees.
        rates: learning rates to choose from on trial 0, which is not scored.
        trials: that are scored.
    """

    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    delta: float = 1e-6
    rates: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    trials: int = 3


@dataclass(frozen=True)
class ImageSetting(Setting):
    """That of Appendix G.1, but for the model and the images: T = 2000 and 20 epochs.

    Attributes:
        guess: what `rates` are multiples of: with momentum, and without (DP-SGD).
    """

    epsilons: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    rates: tuple[float, ...] = (0.25, 1.0, 2.0, 4.0, 8.0, 16.0)
    steps: int = 2000
    batch_size: int = 600
    clip_norm: float = 1.0
    momentum: float = 0.95
    cooled: int = 500
    guess: tuple[float, float] = (0.03, 0.6)


@dataclass(frozen=True)
class TextSetting(Setting):
    """Rounds and clients of docs/measured.md, each client at most once in N / 32 rounds.

    Attributes:
        multipliers: `epsilons` are noise multipliers.
    """

    epsilons: tuple[float, ...] = (1.0, 4.0, 16.0)
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    trials: int = 2
    rounds: Rounds = field(default_factory=lambda: Rounds(240, 32))
    multipliers: bool = False


def strategies(arm: str, steps: int, order: FixedOrder) -> Strategy:
    """The noise of an arm for prefix sums and the participation of the order."""
    sums, participation = prefix_sum(steps), order.participation
    if arm == SGD:
        return Identity(steps)
    if arm == TREE:
        return restarted(Tree, steps, participation)
    if arm == ROOT:
        return restarted(lambda n: Toeplitz.square_root(prefix_sum(n)), steps, participation)
    if arm == NU:
        return damped(steps, participation)
    if arm == ME:
        return dense(sums, participation=participation).strategy
    period = {f"DP-MF⁺, τ = {steps}": steps, "DP-MF": None}[arm]
    workload = sums if period is None else restart_differences(sums, period=period)
    return dense(workload, participation=participation).strategy


def mechanism(
    strategy: Strategy,
    arm: str,
    order: FixedOrder,
    epsilon: float,
    delta: float,
    clip_norm: float,
    multiplier: bool = False,
) -> Mechanism:
    """Calibrated: DP-SGD with Poisson sampling, all others without amplification."""
    given: Sampling = order
    if multiplier:
        return calibrate(strategy, sampling=given, noise_multiplier=epsilon, delta=delta, clip_norm=clip_norm)
    if arm == SGD:
        given = Poisson(order.examples, order.batch_size, order.steps)
    return calibrate(strategy, sampling=given, epsilon=epsilon, delta=delta, clip_norm=clip_norm)


def pooled(images: Images) -> Images:
    """Squares of four pixels as one."""

    def halved(x: Floats) -> Floats:
        side = math.isqrt(x.shape[1])
        return x.reshape(len(x), side // 2, 2, side // 2, 2).mean(axis=(2, 4)).reshape(len(x), -1)

    return Images(
        halved(images.features),
        images.labels,
        halved(images.test_features),
        images.test_labels,
        images.classes,
    )


def on_images(images: Images, how: ImageSetting) -> Train:
    """Trains all epsilons and rates of an arm at once."""
    order = FixedOrder(len(images.labels), how.batch_size, steps=how.steps)
    chosen = cache(lambda arm: strategies(arm, how.steps, order))
    width = images.features.shape[1] * (images.classes - 1)

    def train(
        arm: str, trial: int, rates: Mapping[float, tuple[float, ...]]
    ) -> dict[tuple[float, float], float]:
        pairs = [(epsilon, rate) for epsilon, several in rates.items() for rate in several]
        guess, momentum = (how.guess[1], 0.0) if arm == SGD else (how.guess[0], how.momentum)
        sampling, noise, scales = order, None, [0.0] * len(pairs)
        if arm != SILENT:
            made = {e: mechanism(chosen(arm), arm, order, e, how.delta, how.clip_norm) for e, _ in pairs}
            sampling = next(iter(made.values())).sampling  # type: ignore[assignment]
            noise = noise_rows(chosen(arm), width, trial)
            scales = [made[e].noise_std * how.clip_norm for e, _ in pairs]
        weights = train_together(
            images.features,
            images.labels,
            schedule(sampling, trial),
            steps=how.steps,
            classes=images.classes,
            batch_size=how.batch_size,
            rate=[guess * rate for _, rate in pairs],
            clip_norm=how.clip_norm,
            noise=noise,
            scales=scales,
            momentum=momentum,
            cooled=how.cooled,
        )
        return dict(zip(pairs, accuracies(weights, images.test_features, images.test_labels), strict=True))

    return train


def on_clients(data: Population, how: TextSetting) -> Train:
    """Trains every epsilon and rate of an arm on its own."""
    rounds = how.rounds
    order = FixedOrder(data.clients, rounds.clients_per_round, steps=rounds.rounds)
    chosen = cache(lambda arm: strategies(arm, rounds.rounds, order))
    delta = data.clients**-1.1

    def train(
        arm: str, trial: int, rates: Mapping[float, tuple[float, ...]]
    ) -> dict[tuple[float, float], float]:
        found = {}
        noise = None if arm == SILENT else noise_rows(chosen(arm), int(np.prod(data.shape)), trial)
        for epsilon, several in rates.items():
            sampling, scale = order, 0.0
            if arm != SILENT:
                made = mechanism(chosen(arm), arm, order, epsilon, delta, rounds.clip_norm, how.multipliers)
                sampling, scale = made.sampling, made.noise_std * rounds.clip_norm  # type: ignore[assignment]
            for rate in several:
                found[epsilon, rate] = federate(
                    data, schedule(sampling, trial), rounds, rate=rate, noise=noise, scale=scale
                )
        return found

    return train


@dataclass(frozen=True)
class Result:
    """Accuracies of the scored trials by arm and epsilon, and the rates that were chosen."""

    epsilons: tuple[float, ...]
    values: Mapping[tuple[str, float], tuple[float, ...]]
    rates: Mapping[tuple[str, float], float]
    edges: tuple[str, ...]

    def mean(self, arm: str, epsilon: float) -> float:
        return float(np.mean(self.values[arm, epsilon]))

    def error(self, arm: str, epsilon: float) -> float:
        found = self.values[arm, epsilon]
        return float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.nan

    def against(self, arm: str, rival: str) -> str:
        """At which epsilons one is clearly ahead of the other; trials are paired."""
        ahead: dict[bool, list[str]] = {True: [], False: []}
        for epsilon in self.epsilons:
            pairs = np.subtract(self.values[arm, epsilon], self.values[rival, epsilon])
            spread = float(np.std(pairs, ddof=1) / math.sqrt(len(pairs))) if len(pairs) > 1 else math.inf
            if abs(pairs.mean()) > CLEAR * spread:
                ahead[bool(pairs.mean() > 0)].append(f"{epsilon:g}")
        return (
            f"{arm} is ahead of {rival} at ε = {', '.join(ahead[True]) or 'none'}, behind at"
            f" {', '.join(ahead[False]) or 'none'}"
        )


def measured(train: Train, how: Setting, arms: tuple[str, ...], folder: Path, name: str) -> Result:
    """Rates from trial 0, scores from the others; what was trained before is read from `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[tuple[str, float], tuple[float, ...]] = {}
    rates: dict[tuple[str, float], float] = {}
    edges = []
    for arm in arms:
        epsilons = (math.inf,) if arm == SILENT else how.epsilons
        mark = hashlib.sha256(json.dumps([name, arm, asdict(how)], sort_keys=True).encode()).hexdigest()
        asked = dict.fromkeys(epsilons, how.rates)
        for trial in range(how.trials + 1):
            file = folder / f"{name}-{letters(arm)}-{trial}.json"
            places = [(epsilon, rate) for epsilon, several in asked.items() for rate in several]
            known = kept(file, f"{mark} {places}")
            if known is None:
                found = train(arm, trial, asked)
                known = {float(place): found[pair] for place, pair in enumerate(places)}
                keep(file, f"{mark} {places}", known)
            scored = {pair: known[place] for place, pair in enumerate(places)}
            print(
                f"{name} {arm}, trial {trial}: " + ", ".join(f"{a:.4f}" for a in scored.values()), flush=True
            )
            if trial:
                for (epsilon, _), accuracy in scored.items():
                    values[arm, epsilon] = (*values.get((arm, epsilon), ()), accuracy)
                continue
            for epsilon in epsilons:
                best = max(how.rates, key=lambda rate: scored[epsilon, rate])
                rates[arm, epsilon], asked[epsilon] = best, (best,)
                if best in (how.rates[0], how.rates[-1]):
                    edges.append(f"{arm} at ε = {epsilon:g}")
    return Result(how.epsilons, values, rates, tuple(edges))


def panel(result: Result, title: str, y: str) -> Panel:
    """Accuracy against epsilon, with standard errors."""
    epsilons = np.array(result.epsilons)
    curves = []
    for arm in ARMS:
        means = np.array([result.mean(arm, e) for e in epsilons])
        errors = np.array([result.error(arm, e) for e in epsilons])
        curves.append(Curve(arm, epsilons, means, error=errors, dashed=arm in (SGD, ME)))
    level = np.full(2, result.mean(SILENT, math.inf))
    curves.append(Curve(SILENT, epsilons[[0, -1]], level, dashed=True))
    return Panel(title, "ε", y, tuple(curves), "x")


def rows(result: Result, what: str, columns: int) -> list[tuple[str, ...]]:
    """One row for the epsilons, and one an arm, with blanks up to so many columns."""
    blank = [""] * (columns - len(result.epsilons))
    found = [(f"{what}, ε", "", *(f"{e:g}" for e in result.epsilons), *blank)]
    for arm in (SILENT, *ARMS):
        cells = [
            f"{100 * result.mean(arm, e):.2f} ± {100 * result.error(arm, e):.2f}"
            for e in ([math.inf] * len(result.epsilons) if arm == SILENT else result.epsilons)
        ]
        found.append((what, arm, *cells, *blank))
    return found


def claims(result: Result, what: str) -> str:
    """The paper's sentences beside what was found."""
    gap = []
    for epsilon in result.epsilons:
        others = max(result.mean(arm, epsilon) for arm in (TREE, ROOT))
        whole = result.mean(ME, epsilon) - others
        part = result.mean(NU, epsilon) - others
        gap.append(f"{100 * part:+.2f} of {100 * whole:+.2f} points at ε = {epsilon:g}")
    edges = f" The best rate was at an end of the grid for {'; '.join(result.edges)}." if result.edges else ""
    return (
        f"{what}. The paper: ν-DP-FTRL outperforms all other efficient anytime mechanisms. Here"
        f" {result.against(NU, TREE)}; {result.against(NU, ROOT)}. The paper: it makes up 30 to 80 % of the"
        f" gap between them and ME, or is ahead of ME. Here {'; '.join(gap)}; {result.against(NU, ME)}. The"
        f" paper: DP-SGD, amplified, is ahead only where ε is small. Here {result.against(NU, SGD)}.{edges}"
    )


def _described(clients: Population, how: TextSetting) -> str:
    rounds = how.rounds
    return (
        f"Next character in sections of Python's docstrings, {clients.clients:,} clients, as StackOverflow is"
        f" not packaged: {rounds.rounds} rounds of {rounds.clients_per_round}, clip norm"
        f" {rounds.clip_norm:g}, momentum {rounds.momentum:g} and a rate of the server that falls over the"
        f" last {100 * rounds.cooled:.0f} % of the rounds,"
    )


def figure_4(
    directory: str,
    folder: Path,
    images: ImageSetting | None = None,
    texts: TextSetting | None = None,
    population: Population | None = None,
) -> Exhibit:
    """ν-DP-FTRL trained on images and by clients beside tree, root, ME and DP-SGD (slow: half an hour).

    Args:
        directory: folder of the four files of images.
        folder: of the outcomes so far; a run that was stopped goes on from them.
        images, texts: settings; None for those of the exhibit.
        population: None for the docstrings of the Python that runs.
    """
    images, texts = images or ImageSetting(), texts or TextSetting()
    data, clients = pooled(images_in(directory)), population or DocstringSections().load()
    everyone = (SILENT, *ARMS)
    seen = measured(on_images(data, images), images, everyone, folder, "images")
    read = measured(on_clients(clients, texts), texts, everyone, folder, "clients")
    columns = max(len(images.epsilons), len(texts.epsilons))
    first, second = "(a) images, ε of an image", "(b) next character, ε of a client"
    setting = (
        "Accuracy in percent on data that were held out, mean and standard error of"
        f" {images.trials} trials (a) and {texts.trials} (b); the learning rate of each arm and ε is the"
        " best of a grid in another trial. (a) Fashion-MNIST in 14 × 14 pixels, multinomial logistic model,"
        f" as CIFAR-10 is not packaged: T = {images.steps:,}, batches of {images.batch_size}, 20 epochs,"
        f" clip norm {images.clip_norm:g}, δ = {images.delta:g}, momentum {images.momentum:g} but for DP-SGD,"
        f" rates that fall over the last {images.cooled} steps: Appendix G.1 but for data and model. (b)"
        f" {_described(clients, texts)} δ = 1/N^1.1. Levels cannot be compared with the paper's, only who"
        " leads. × S: restarted as often as is best for the squared error; ν is tuned for the same error."
        " DP-SGD has Poisson sampling and its amplification, the others have one fixed order and none."
    )
    return Exhibit(
        "000-4",
        "Noise for any horizon, trained",
        f"{PAPER}, Figure 4, on other data",
        (panel(seen, first, "test accuracy"), panel(read, second, "accuracy")),
        (("", "noise", *[""] * columns), *rows(seen, "images", columns), *rows(read, "clients", columns)),
        (setting, claims(seen, "Images"), claims(read, "Clients")),
    )


#: Table 2 of paper 004: noise multiplier, and accuracy of DP-MF and DP-MF+ in percent with standard errors.
PRINTED = {
    0.341: ("24.63 ± 0.06", "24.58 ± 0.12"),
    0.682: ("23.76 ± 0.14", "23.73 ± 0.16"),
    1.364: ("22.54 ± 0.11", "22.44 ± 0.08"),
    2.728: ("11.51 ± 12.71", "10.42 ± 13.05"),
    5.456: ("0.03 ± 0.02", "0.05 ± 0.06"),
}


def table_2(folder: Path, texts: TextSetting | None = None, population: Population | None = None) -> Exhibit:
    """DP-MF against DP-MF⁺ trained by clients (slow: ten minutes).

    Args:
        folder: of the outcomes so far; a run that was stopped goes on from them.
        texts: settings; None for those of the exhibit.
        population: None for the docstrings of the Python that runs.
    """
    how = texts or TextSetting(
        epsilons=tuple(PRINTED),
        rates=(0.125, 0.25, 0.5, 1.0, 2.0),
        trials=2,
        rounds=Rounds(256, 12),
        multipliers=True,
    )
    clients = population or DocstringSections().load()
    last = f"DP-MF⁺, τ = {how.rounds.rounds}"
    found = measured(on_clients(clients, how), how, (SILENT, "DP-MF", last), folder, "multipliers")
    table: list[tuple[str, ...]] = [
        ("noise multiplier", "DP-MF", last, "DP-MF, paper", "DP-MF⁺, τ = 2048, paper")
    ]
    for sigma in how.epsilons:
        ours = (
            f"{100 * found.mean(a, sigma):.2f} ± {100 * found.error(a, sigma):.2f}" for a in ("DP-MF", last)
        )
        table.append((f"{sigma:g}", *ours, *PRINTED.get(sigma, ("", ""))))
    silent = 100 * found.mean(SILENT, math.inf)
    remarks = (
        f"{_described(clients, how)} each client once, as in the paper, whose data, model (LSTM), rounds"
        " (2,048 of 167 clients) and levels are others. Accuracy in percent, mean and standard error of"
        f" {how.trials} trials (paper: 2); the learning rate of each cell is the best of a grid in another"
        f" trial. Without noise: {silent:.2f}.",
        "The paper: the two methods perform comparably. Here, by noise multiplier in the place of ε:"
        f" {found.against(last, 'DP-MF')} (more than {CLEAR:g} standard errors, paired).",
    )
    return Exhibit(
        "004-table-2",
        "DP-MF and DP-MF⁺ for whole clients",
        f"{DESCENT}, Table 2, on other data",
        table=tuple(table),
        remarks=remarks,
    )
