"""Figures that add up: districts to regions, regions to the country, by least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from anechoic._validate import fraction, positive_float
from anechoic.streaming.release import Estimate, Release
from anechoic.streaming.statistic import quantile

#: Name of the figures in a release.
FIGURES = "figures"


class Hierarchy:
    """A tree of places, each the sum of those below it, and the figures of least variance that add up.

    Figures are released of each level by itself, with independent noise of known size, as by a stream of a
    histogram for each level. What is best known of a place is then not its own figure, but a combination with
    those above, beside and below it. Nothing is spent: it is post-processing.

    Over time the noise of all places has one correlation, so that the least-squares figures of a step from
    the figures of all steps are those from this step alone: docs/proofs/hierarchies.md.

    Args:
        parents: of each place but the root, the one that it is part of.

    Attributes:
        nodes: the places, each before those below it.
        leaves: those that nothing is below.

    Raises:
        ValueError: if `parents` is no tree with one root.

    Example:
        >>> from anechoic import streaming
        >>> land = streaming.Hierarchy({"north": "land", "south": "land"})
        >>> errors = {"land": 1, "north": 2, "south": 2}
        >>> found = land.consistent({"land": 105, "north": 60, "south": 42}, errors)
        >>> [bool(found.value[0] == found.value[1] + found.value[2]), bool(found.standard_error[0] < 1)]
        [True, True]
    """

    def __init__(self, parents: Mapping[str, str]) -> None:
        self._parents = dict(parents)
        roots = sorted(set(self._parents.values()) - self._parents.keys(), key=str)
        if len(roots) != 1:
            raise ValueError(
                f"parents has {len(roots)} places without a parent ({str(roots)[:80]}): a tree has one root."
            )
        self._below: dict[str, list[str]] = {}
        for node, parent in self._parents.items():
            self._below.setdefault(parent, []).append(node)
        nodes = [roots[0]]
        for node in nodes:  # it grows as it is gone through
            nodes += self._below.get(node, [])
        if len(nodes) <= len(self._parents):
            raise ValueError("parents has a circle: no place can be part of itself.")
        self.nodes = tuple(nodes)
        self.leaves = tuple(node for node in nodes if node not in self._below)

    def of(self, release: Release, *, level: float = 0.95, spacing: float | None = None) -> Release:
        """The same release with one statistic, "figures", of all places; `named()` gives them by name.

        Args:
            release: of counts or sums: of each place a label of some statistic, or the name of one.
            level, spacing: see `consistent`.

        Raises:
            ValueError: as `consistent`; for a place that two statistics have, and for statistics whose values
                are no sums.
        """
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        for name, one in release.estimates.items():
            if one.raw.shape != one.value.ravel().shape or not np.array_equal(one.raw, one.value.ravel()):
                raise ValueError(f"{name!r} is no plain count or sum: figures of such add up to nothing.")
            twice = values.keys() & (found := release.named(name)).keys()
            if twice:
                raise ValueError(
                    f"{sorted(twice)[0]!r} stands in two statistics: give each place one figure."
                )
            values |= found
            errors |= dict(zip(found, one.standard_error.ravel().tolist(), strict=True))
        if strange := sorted(values.keys() - set(self.nodes)):
            raise ValueError(f"{strange[0]!r} is released, and no place of this hierarchy: take it out.")
        made = self.consistent(values, errors, level=level, spacing=spacing)
        parts = {FIGURES: made}, release.epsilon, release.delta, {FIGURES: self.nodes}
        return Release(release.step, release.time, *parts)

    def consistent(
        self,
        values: Mapping[str, float],
        errors: Mapping[str, float],
        *,
        level: float = 0.95,
        spacing: float | None = None,
    ) -> Estimate:
        """The least-squares figures that add up, weighted by the variances of those given.

        Figures of leaves are rounded to multiples of `spacing`, and all others are sums of these, without
        rounding: they add up exactly. A figure moves by at most half of `spacing` for each leaf below it.

        Args:
            values: by place; one that has leaves below it may be missing.
            errors: standard deviations of their noise, > 0, independent of one another.
            level: of the intervals, in (0, 1).
            spacing: a power of two: 1 for whole numbers. None for the finest for which sums are exact.

        Returns:
            Arrays in the order of `nodes`. Standard errors are those before rounding; intervals allow for it.

        Raises:
            ValueError: for a leaf without figure, a place that is none, and what is no number.
        """
        own = {node: self._checked(node, values, errors) for node in self.nodes}
        if strange := sorted((values.keys() | errors.keys()) - set(self.nodes)):
            raise ValueError(f"{strange[0]!r} is no place of this hierarchy.")
        best: dict[str, tuple[float, float]] = {}
        for node in reversed(self.nodes):  # from what is known of a place and of those below it
            best[node] = own[node]
            if node in self._below:
                below = [best[child] for child in self._below[node]]
                total, variance = math.fsum(v for v, _ in below), math.fsum(s for _, s in below)
                value, alone = own[node]
                share = variance / (variance + alone) if math.isfinite(alone) else 0.0
                best[node] = (total + share * (value - total), variance * (1 - share))
        found = {self.nodes[0]: best[self.nodes[0]]}
        for node in self.nodes:  # what is missing to the place above goes to those below by their variances
            children = self._below.get(node, [])
            total = math.fsum(best[child][0] for child in children)
            variance = math.fsum(best[child][1] for child in children)
            for child in children:
                value, alone = best[child]
                share = alone / variance
                left = alone * (1 - share) + share**2 * found[node][1]
                found[child] = (value + share * (found[node][0] - total), left)
        return self._on_grid(found, quantile(fraction("level", level)), spacing)

    def _checked(
        self, node: str, values: Mapping[str, float], errors: Mapping[str, float]
    ) -> tuple[float, float]:
        """The figure of a place, and its variance, infinite where it has none."""
        if node not in values and node in self._below:
            return 0.0, math.inf
        if node not in values or node not in errors:
            raise ValueError(f"{node!r} has no figure, or no error: nothing else says what it is. Give both.")
        value, error = float(values[node]), positive_float(f"errors[{node!r}]", errors[node])
        if not (abs(value) < 2.0**300 and 2.0**-300 < error < 2.0**300):
            raise ValueError(f"values[{node!r}]={value}, errors[{node!r}]={error} are not of usual size.")
        return value, error**2

    def _on_grid(self, found: Mapping[str, tuple[float, float]], z: float, spacing: float | None) -> Estimate:
        reach = max(math.fsum(abs(found[leaf][0]) for leaf in self.leaves), 2.0**-300)
        finest = 2.0 ** (math.frexp(reach)[1] - 51)  # all sums are below 2**52 of it
        cell = finest if spacing is None else positive_float("spacing", spacing)
        if cell < finest or math.frexp(cell)[0] != 0.5:
            raise ValueError(
                f"spacing={spacing!r} must be a power of two of at least {finest:g} here: sums of others are"
                " not exact."
            )
        sums = {leaf: cell * round(found[leaf][0] / cell) for leaf in self.leaves}
        parts = dict.fromkeys(self.leaves, 1)
        for node in reversed(self.nodes):
            if node in self._below:
                sums[node] = sum(sums[child] for child in self._below[node])
                parts[node] = sum(parts[child] for child in self._below[node])
        value = np.array([sums[node] for node in self.nodes])
        error = np.sqrt([found[node][1] for node in self.nodes])
        half = z * error + cell / 2 * np.array([parts[node] for node in self.nodes])
        return Estimate(value, error, value - half, value + half, value)
