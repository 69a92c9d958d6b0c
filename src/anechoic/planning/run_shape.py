"""One batch size and one length of the question: its steps, its workload, and what may be touched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, singledispatch

from anechoic.participation import Cyclic, MinSep, OncePerEpoch, Patterns, Single
from anechoic.participation.base import Participation
from anechoic.planning.designs import Designs, designs_of
from anechoic.planning.objective import Kept, PlanObjective
from anechoic.planning.update import UpdateRule
from anechoic.sampling import External, FixedOrder
from anechoic.sampling.base import Sampling
from anechoic.workloads.base import Workload


@dataclass(frozen=True)
class RunShape:
    """What `plan` was asked, for one batch size and one number of passes or steps."""

    examples: int
    batch_size: int
    epochs: int | None
    steps: int | None
    random_sampling: bool
    participation: Participation | None
    drop_last: bool
    design: Workload | Callable[[int], Workload] | None
    update: UpdateRule
    keep: Kept | float

    @cached_property
    def workload(self) -> Workload:
        """What the error is measured on in the steps of this run: what was given, or what an update adds."""
        n = self.fixed.steps
        if self.design is None:
            return self.update.workload(n, self.period)
        found = self.design(n) if callable(self.design) else self.design
        if not isinstance(found, Workload) or not found.has_toeplitz_factor:
            raise ValueError(
                f"workload={found!r} must be a Toeplitz workload, with learning rates or not, such as"
                " prefix_sum(n) or momentum(n, 0.9)."
            )
        if found.n != n:
            raise ValueError(
                f"workload has n={found.n} steps but the run has {n}: give a function of the number of steps."
            )
        return found

    @cached_property
    def designs(self) -> Designs:
        return designs_of(PlanObjective.of(self.workload, self.keep))

    @property
    def fixed(self) -> FixedOrder:
        return FixedOrder(
            self.examples,
            self.batch_size,
            epochs=self.epochs,
            steps=self.steps or 0,
            drop_last=self.drop_last,
        )

    @property
    def sampled(self) -> bool:
        """Whether batches may be drawn at random and in secret."""
        return self.participation is None and self.random_sampling

    @property
    def unsampled(self) -> Sampling:
        """How batches are formed where nothing is drawn."""
        if self.participation is None:
            return self.fixed
        return External(self.participation, self.batch_size, self.fixed.steps, self.examples)

    @property
    def period(self) -> int:
        """Steps of a pass."""
        return self.fixed.period


def separation_of(schema: Participation, n: int) -> int:
    """Steps between two participations of one unit; n where it takes part once, 1 where nothing is known.

    On average where it takes part once an epoch. So many bands are tried: what they cost in noise is found by
    the sensitivity under the schema itself.
    """
    if schema.max_participations_in(n) == 1:
        return n
    if isinstance(schema, MinSep):
        return schema.separation
    return schema.period if isinstance(schema, (Cyclic, OncePerEpoch)) else 1


@singledispatch
def buffered_schema(schema: Participation) -> Participation:
    """The schema that `optimize.blt` designs for, which is not what its noise is calibrated for.

    Others than it knows are taken as separated by one step; a step anywhere in an epoch as the same in each,
    which of what was tried has the least error beyond two epochs.
    """
    return MinSep(1)


@buffered_schema.register
def _(schema: OncePerEpoch) -> Participation:
    return Cyclic(schema.period)


@buffered_schema.register
def _(schema: Patterns) -> Participation:
    return MinSep(1, schema.max_participations_in(sys.maxsize))


for _kept in (Single, Cyclic, MinSep):
    buffered_schema.register(_kept, lambda schema: schema)
