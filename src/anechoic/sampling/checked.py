"""Checks that schemes share."""

from __future__ import annotations

from typing import Protocol

from anechoic._validate import positive_int
from anechoic.sampling.base import Sampling


class Drawn(Protocol):
    """A scheme that draws from a known number of examples."""

    @property
    def examples(self) -> int: ...


def whole_numbers(scheme: Sampling, *names: str) -> None:
    for name in names:
        object.__setattr__(scheme, name, positive_int(name, getattr(scheme, name)))


def at_most_examples(scheme: Drawn, name: str, value: int) -> None:
    if value > scheme.examples:
        raise ValueError(
            f"{name}={value} exceeds examples={scheme.examples}: a batch would be expected to hold less than"
            f" one example. Take at most {scheme.examples} {'steps' if name == 'period' else name}."
        )
