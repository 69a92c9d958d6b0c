"""One batch size of the question: the steps it makes, and the candidates where nothing is sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from anechoic.optimize import blt
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Participation, Single
from anechoic.planning.bands import powers_of_two
from anechoic.planning.designs import BANDED_UP_TO, Designs
from anechoic.planning.records import Candidate
from anechoic.sampling import External, FixedOrder, Sampling
from anechoic.strategies import Identity, Output
from anechoic.workloads import Workload

#: More buffers than this gain nothing (Section 4.3.2).
_BUFFERS = 5


@dataclass(frozen=True)
class Setting:
    """What `plan` was asked, for one batch size; `history` bounds the rows of noise state."""

    examples: int
    batch_size: int
    epochs: int | None
    steps: int | None
    random_sampling: bool
    participation: Participation | None
    drop_last: bool
    design: Workload | Callable[[int], Workload]
    history: int | None

    @cached_property
    def workload(self) -> Workload:
        """What the error is measured on, for the steps of this run."""
        n = self.fixed.steps
        found = self.design(n) if callable(self.design) else self.design
        if not isinstance(found, Workload) or not found.is_toeplitz:
            raise ValueError(
                f"workload={found!r} must be a Toeplitz workload, such as prefix_sum(n) or momentum(n, 0.9):"
                " leave learning rates out of the design."
            )
        if found.n != n:
            raise ValueError(
                f"workload has n={found.n} steps but the run has {n}: give a function of the number of steps."
            )
        return found

    @cached_property
    def designs(self) -> Designs:
        return Designs(self.workload)

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

    def at_most(self, bands: int) -> int:
        """`bands`, or as many as the noise state has room for."""
        return bands if self.history is None else min(bands, self.history)

    def unsampled_candidates(self, name: str) -> Iterable[Candidate]:
        """Strategies for batches that are not drawn."""
        sampling = self.unsampled
        n, workload, schema = sampling.steps, self.workload, sampling.participation
        if name in ("auto", "identity"):
            yield Candidate(Identity(n), sampling)
        if name == "output":
            yield Candidate(Output(workload), sampling)
        separation = separation_of(schema, n)
        most = self.at_most(min(n, separation))
        if name in ("auto", "banded_toeplitz") and n <= BANDED_UP_TO and most > 1:
            for bands in powers_of_two(most):
                yield Candidate(self.designs.toeplitz(bands), sampling)
            free = self.designs.free(most)
            if free is not None:
                yield Candidate(free, sampling)
        if name in ("auto", "blt") and n > 1 and (separation > 1 or name == "blt"):
            for buffers in range(1, self.at_most(min(_BUFFERS, n - 1)) + 1):
                best = blt(workload, buffers=buffers, participation=_for_blt(schema), loss="rms").strategy
                if best.recurrence().rows < buffers:  # more buffers than the optimum has use for
                    break
                yield Candidate(best, sampling)


def separation_of(schema: Participation, n: int) -> int:
    """Steps between two participations of one unit; n where it takes part once."""
    if schema.max_participations_in(n) == 1:
        return n
    if isinstance(schema, Cyclic):
        return schema.period
    if isinstance(schema, MinSep):
        return schema.separation
    return 1


def is_federated(participation: Participation | None) -> bool:
    """Whether what is promised is what federated clients promise."""
    return isinstance(participation, (MinSep, OncePerEpoch, FullBatch))


def _for_blt(schema: Participation) -> Participation:
    """The schema that `optimize.blt` is given: the others are bounded as if separated by one step."""
    return schema if isinstance(schema, (Single, Cyclic, MinSep)) else MinSep(1)
