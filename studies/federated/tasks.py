"""The federations of the study, as picklable data: who the clients are, what is learned, in which rounds."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_float, positive_int
from studies.data.changelogs import DIRECTORY, changelogs
from studies.data.docstrings import docstrings
from studies.data.fashion_mnist import fashion_mnist
from studies.federated.population import Features, Population, padded
from studies.federated.split import DailyWindows, Indices, dirichlet_split

#: Of split, windows and held-out authors: the same federation in every run.
POPULATION_SEED = 20_130


@dataclass(frozen=True)
class Rounds:
    """How a federation trains: one attempt at a round every hour.

    Args:
        rounds: releases (n).
        clients_per_round: clients asked, and the divisor (m).
        separation: rounds from one participation of a client to its next, at least (b).
        max_participations: of one client (k).
        local_steps, local_rate: gradient steps of a client on all its examples, and their learning rate.
        clip_norm: largest 2-norm of an update.
        momentum: of the server.
    """

    rounds: int
    clients_per_round: int
    separation: int
    max_participations: int
    local_steps: int
    local_rate: float
    clip_norm: float
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for name in ("rounds", "clients_per_round", "separation", "max_participations", "local_steps"):
            positive_int(name, getattr(self, name))
        positive_float("local_rate", self.local_rate)
        positive_float("clip_norm", self.clip_norm)


@dataclass(frozen=True)
class FashionClients:
    """Which of ten kinds of clothing does an image show? 60,000 images, spread by Dirichlet laws.

    Args:
        directory: folder with the four files.
        clients: N.
        concentration: of the Dirichlet laws, alpha.
        most: images of a client that are used.
        rounds: how it trains.
        examples: the first so many images; None for all.
    """

    directory: str = field(repr=False)
    clients: int = 2000
    concentration: float = 0.3
    most: int = 40
    rounds: Rounds = Rounds(720, 32, 48, 15, 4, 0.1, 0.2)
    examples: int | None = None

    name = "fashion-mnist"
    title = "Fashion-MNIST over clients"
    example = "image"
    metric = "test accuracy"
    metric_long = "accuracy on the 10,000 test images after the last round"
    random = True

    def load(self) -> Population:
        """The federation: pixels as bytes, one constant feature beside them."""
        images, labels, test, test_labels = fashion_mnist(self.directory)
        images, labels = images[: self.examples], labels[: self.examples]
        rng = np.random.default_rng(POPULATION_SEED)
        parts = dirichlet_split(labels, self.clients, self.concentration, rng)
        kept = padded(_bytes(images), labels.astype(np.uint8), parts, self.most)
        windows = DailyWindows.drawn(self.clients, rng)
        return Population(*kept, _pixels, windows, 10, _bytes(test), test_labels.astype(np.uint8))

    def describe(self, data: Population) -> str:
        """One sentence on data, model and clients."""
        return (
            f"Fashion-MNIST over {data.clients:,} clients: each class is spread by a Dirichlet law with"
            f" alpha = {self.concentration:g}, and a client uses at most {self.most} of its images"
            f" ({data.examples:,} in all); softmax regression on pixels, {_parameters(data):,} parameters"
        )


#: Characters that are told apart in a text; digits are one, and whatever is not here is the last.
ALPHABET = "abcdefghijklmnopqrstuvwxyz 0.,:-()/*#_'\"+<>\x00"
#: Characters before the next one that the model sees.
CONTEXT = 3
#: Every so many texts one is held out, to score on.
HELD_OUT = 10


@dataclass(frozen=True)
class NextCharacter(ABC):
    """What is the next character? A client is who, or what, a text belongs to.

    Args:
        directory: where the text is; None for its usual place.
        most: characters of a client to train on, at places drawn at random.
        least: characters that a text must have to take part.
        rounds: how it trains.
    """

    directory: str | None = None
    most: int = 64
    least: int = 32
    rounds: Rounds = Rounds(240, 32, 48, 5, 4, 1.0, 0.4)

    example: ClassVar[str] = "character"
    metric: ClassVar[str] = "accuracy"
    random: ClassVar[bool] = True

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """One text for each client, and for each that is held out."""

    def load(self) -> Population:
        """The federation: the characters before each place, one-hot, and one constant feature."""
        texts = [text for text in map(coded, self.texts()) if len(text) - CONTEXT >= self.least]
        rng = np.random.default_rng(POPULATION_SEED)
        order = rng.permutation(len(texts))
        held = max(1, len(texts) // HELD_OUT)
        test, train = ([texts[i] for i in chosen] for chosen in (order[:held], order[held:]))
        inputs, labels, parts = _places(train, self.most, rng)
        kept = padded(inputs, labels, parts, self.most)
        windows = DailyWindows.drawn(len(train), rng)
        test_inputs, test_labels, _ = _places(test, 4 * self.most, rng)
        return Population(*kept, _one_hot, windows, len(ALPHABET), test_inputs, test_labels)

    def _described(self, data: Population, source: str, clients: str) -> str:
        return (
            f"{source}, {data.clients:,} {clients} as clients, at most"
            f" {self.most} characters of each ({data.examples:,} in all), and {len(data.test_labels):,}"
            f" characters of other {clients} to score on; softmax regression on the {CONTEXT} characters"
            f" before, {_parameters(data):,} parameters"
        )


@dataclass(frozen=True)
class ChangelogAuthors(NextCharacter):
    """The next character of changelogs on this machine; a client is an author."""

    name = "changelogs"
    title = "the next character of changelogs, over authors"
    metric_long = "share of next characters that are named right, on authors who were held out"

    def texts(self) -> Iterable[str]:
        """All entries of each author."""
        return map(" ".join, changelogs(self.directory or DIRECTORY).values())

    def describe(self, data: Population) -> str:
        """One sentence on data, model and clients."""
        return self._described(data, "Changelogs that packages on this machine install", "authors")


@dataclass(frozen=True)
class DocstringSections(NextCharacter):
    """The next character of the docstrings of Python's own library; a client is a section of it."""

    name = "docstrings"
    title = "the next character of docstrings, over sections"
    metric_long = "share of next characters that are named right, on sections that were held out"

    def texts(self) -> Iterable[str]:
        """Those of each module, function and class."""
        return docstrings(self.directory).values()

    def describe(self, data: Population) -> str:
        """One sentence on data, model and clients."""
        version = "Docstrings of the library of Python {}.{}".format(*sys.version_info)
        source = version if self.directory is None else "Docstrings of Python modules"
        return self._described(data, source, "sections (modules, functions, classes)")


FederatedTask = FashionClients | ChangelogAuthors | DocstringSections


def coded(text: str) -> NDArray[np.uint8]:
    """Places of the characters of a text in `ALPHABET`."""
    table = {character: place for place, character in enumerate(ALPHABET)}
    other = len(ALPHABET) - 1
    digits = {str(digit): table["0"] for digit in range(10)}
    table = {**table, **digits}
    return np.array([table.get(character, other) for character in text.lower()], np.uint8)


def _places(
    texts: list[NDArray[np.uint8]], most: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[Indices]]:
    """Contexts, next characters, and the indices of each text's own, at most `most` of them."""
    inputs, labels, parts, total = [], [], [], 0
    for text in texts:
        count = len(text) - CONTEXT
        chosen = rng.permutation(count)[:most]
        inputs.append(text[chosen[:, None] + np.arange(CONTEXT)])
        labels.append(text[chosen + CONTEXT])
        parts.append(np.arange(total, total + len(chosen)))
        total += len(chosen)
    return np.concatenate(inputs), np.concatenate(labels), parts


def _bytes(images: Features) -> NDArray[np.uint8]:
    return np.rint(images.reshape(len(images), -1) * 255).astype(np.uint8)


def _pixels(inputs: NDArray[np.uint8]) -> Features:
    """Pixels in [0, 1] and a 1."""
    found = np.ones((*inputs.shape[:-1], inputs.shape[-1] + 1), np.float32)
    np.divide(inputs, np.float32(255), out=found[..., :-1])
    return found


def _one_hot(inputs: NDArray[np.uint8]) -> Features:
    """Every character one-hot, and a 1."""
    size = len(ALPHABET)
    found = np.zeros((*inputs.shape[:-1], inputs.shape[-1] * size + 1), np.float32)
    np.put_along_axis(found, inputs.astype(np.int64) + size * np.arange(inputs.shape[-1]), 1, axis=-1)
    found[..., -1] = 1
    return found


def _parameters(data: Population) -> int:
    width, classes = data.shape
    return width * classes
