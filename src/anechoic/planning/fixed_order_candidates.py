"""Candidates for a fixed order of batches, of `plan` and of `plan_rounds`."""

from __future__ import annotations

from collections.abc import Iterable

from anechoic.optimize.full.bidiagonal import bidiagonal_inverse
from anechoic.participation import MinSep, OncePerEpoch, Patterns
from anechoic.participation.base import Participation
from anechoic.planning.bands import powers_of_two
from anechoic.planning.designs import BANDED_UP_TO, NORMALIZE_UP_TO, Designs
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.run_shape import buffered_schema, separation_of
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import ColumnNormalized, FullTree, Identity, Output
from anechoic.strategies.base import Strategy

#: Longest run for which a BLT of several participations is normalised.
NORMALIZED_BLT_UP_TO = 2048
#: And where these are anywhere in each epoch: bounds of the sensitivity take seconds then, and gain 1 %.
NORMALIZED_EPOCHS_UP_TO = 512
#: Strategies of so much the least error are tried with columns whose lengths differ.
UNEVEN_NEAR = 1.05
#: What free columns gain of scaled ones at most: they are tried where they may be the best.
FREED_GAIN = 1.2
#: Longest run for which the best matrix of all is computed, whatever the rows of noise it takes.
DENSE_UP_TO = 64
#: And where a unit may take part anywhere in each of several epochs: eight days of hours take some seconds.
DENSE_EPOCHS_UP_TO = 192


class FixedOrderCandidates:
    """Strategies of one objective under one participation.

    Args:
        designs: of the objective.
        schema: what is promised of the units.
        room: for rows of noise; as many bands as it holds are tried too.
    """

    def __init__(self, designs: Designs, schema: Participation, room: MemoryBudget) -> None:
        self.designs, self.schema, self.room = designs, schema, room
        self.n = designs.workload.n
        self.separation = separation_of(schema, self.n)
        # where every step touches everybody nothing cancels; of a schema that is unknown no more is known
        seldom = isinstance(schema, (MinSep, Patterns)) and schema.max_participations_in(self.n) < self.n
        self.cancels = self.separation > 1 or seldom
        self.reshuffled = isinstance(schema, OncePerEpoch) and schema.max_participations_in(self.n) > 1

    def of(self, families: frozenset[str]) -> Iterable[Strategy]:
        """Those of the families, the ones beyond the room too."""
        if "identity" in families:
            yield Identity(self.n)
        if "output" in families:
            yield Output(self.designs.workload)
        found: list[Strategy] = []
        if "banded_toeplitz" in families and self.n <= BANDED_UP_TO:
            found += self._banded()
        if "blt" in families and self.n > 1 and (self.cancels or len(families) == 1):
            found += self._buffered()
        yield from found
        if "banded_toeplitz" in families:
            yield from self._freed(found)
        if "tree" in families:
            yield FullTree(self.n)
        if "dense" in families and self.cancels and self.n <= self._dense_up_to():
            yield self.designs.dense(self.schema)

    def _dense_up_to(self) -> int:
        """Longest run whose best matrix takes a second or two, and whose rows there is room for."""
        participations = self.schema.max_participations_in(self.n)
        if isinstance(self.schema, Patterns) and (
            participations > 1 or len(self.schema.touched(self.n)) < self.n
        ):
            return 0
        if not self.room.fits(self.n):
            return DENSE_UP_TO
        quick = bidiagonal_inverse(self.designs.workload) is not None
        if participations == 1:
            return 1024 if quick else 512
        if self.reshuffled:
            return DENSE_EPOCHS_UP_TO if quick or participations <= 4 else DENSE_UP_TO
        if quick:
            return 512
        return 256 if participations <= 4 else DENSE_UP_TO

    def _most_within(self) -> int:
        """The most bands that are quick to optimise, and within the room."""
        most = self.designs.most_bands(min(self.n, self.separation))
        return most if self.room.rows is None else min(most, self.room.rows)

    def _banded(self) -> Iterable[Strategy]:
        designs, within = self.designs, self._most_within()
        most = designs.most_bands(min(self.n, self.separation))
        tried = [bands for bands in sorted({*powers_of_two(most), within}) if bands > 1]
        yield from self._of_any_norms([designs.toeplitz(bands) for bands in tried])
        free = designs.free(min(within, designs.normalized_up_to))
        if free is not None:
            yield free

    def _freed(self, found: list[Strategy]) -> Iterable[Strategy]:
        """Columns free where learning rates differ over several passes, and may be the best within the room.

        From as many bands as there is room for, with columns that are scaled.
        """
        designs, schema = self.designs, self.schema
        bands = min(self._most_within(), designs.refined_up_to)
        if bands < 2 or schema.max_participations_in(self.n) == 1:
            return

        def value(strategy: Strategy) -> float:
            return designs.of(strategy) * sensitivity(strategy, schema).value

        scaled = list(designs.scaled_over_passes(designs.toeplitz(bands), schema))
        rivals = [value(one) for one in found if self.room.fits(one.recurrence().rows)]
        if not scaled:
            return
        best = min(scaled, key=value)
        if value(best) <= FREED_GAIN * min(rivals, default=float("inf")):
            refined = designs.refined(best, schema)
            if refined is not None:
                yield refined

    def _buffered(self) -> Iterable[Strategy]:
        once = self.schema.max_participations_in(self.n) == 1
        found = list(self.designs.buffered(buffered_schema(self.schema)))
        yield from found
        if once or self.n <= (NORMALIZED_EPOCHS_UP_TO if self.reshuffled else NORMALIZED_BLT_UP_TO):
            yield from self._of_any_norms([ColumnNormalized(best) for best in found])

    def _of_any_norms(self, even: list[Strategy]) -> Iterable[Strategy]:
        """Strategies of columns of norm 1, and of those near the best some whose norms differ.

        The best within the room, and without it: norms that differ gain as much of those that are near.
        """
        yield from even
        if self.n > NORMALIZE_UP_TO or not even:
            return
        errors = [(self.designs.of(one), self.room.fits(one.recurrence().rows), one) for one in even]
        least = min(error for error, _, _ in errors)
        within = min((error for error, fits, _ in errors if fits), default=least)
        for error, fits, one in errors:
            if error <= UNEVEN_NEAR * (within if fits else least):
                yield from self.designs.scaled_over_passes(one, self.schema)
