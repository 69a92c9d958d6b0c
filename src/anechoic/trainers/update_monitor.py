"""Monitor how much of a release is gradient, and how much noise; both from the releases alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.workloads import exponential_decay

logger = logging.getLogger("anechoic")

#: After so many releases a line in the log says which weights learn.
FIRST = 10
#: Entries of a tensor that are remembered, to see by how much it moved.
REMEMBERED = 4096
#: Names in a line of the log.
NAMED = 8
#: Standard deviations of the noise alone, above which a tensor is said to have a signal.
SEEN = 3.0


class UpdateMonitor:
    """Compare released gradients with the noise in them.

    The squared norm of the release of step t is that of the clipped mean gradient, plus d s_t^2, up to
    s_t^2 sqrt(2 d) and the cross term: d entries, s_t the standard deviation of their noise.

    Args:
        mechanism: of the run, whose losses are means over rows.
        named: the parameters; those that require a gradient are trained.
        say: shows the user which weights moved; None for the log, level INFO. What did not move at all is a
            warning in the log.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        named: Iterable[tuple[str, nn.Parameter]],
        say: Callable[[str], object] | None = None,
    ) -> None:
        self._say = logger.info if say is None else say
        self._mechanism = mechanism
        self._all = [(name.removeprefix("model."), p) for name, p in named]
        self._trained = [(name, p) for name, p in self._all if p.requires_grad]
        self._before = [_some(p).clone() for _, p in self._trained]
        self._sizes = np.array([p.numel() for _, p in self._trained], dtype=float)
        self.begin(0)

    def begin(self, release: int) -> None:
        """Begin to monitor releases."""
        self._first = release
        self._sums, self._noise = np.zeros(len(self._trained)), 0.0  # of the first steps
        self._since, self._noise_since, self._spread = 0.0, 0.0, 0.0  # since the last log

    @cached_property
    def _stds(self) -> NDArray[np.float64]:
        mechanism = self._mechanism
        scale = mechanism.noise_std * mechanism.clip_norm / mechanism.expected_batch_size
        steps = error(exponential_decay(mechanism.steps, 0.0), mechanism.strategy).per_step
        return scale * np.asarray(steps)

    def look(self, step: int) -> None:
        """Read the release of `step` from p.grad."""
        grads = [p.grad for _, p in self._trained if p.grad is not None]
        if len(grads) != len(self._trained):
            return
        norms = torch.stack(torch._foreach_norm(grads)).double().square().numpy(force=True)
        variance = float(self._stds[step] ** 2)
        size = float(self._sizes.sum())
        self._since += float(norms.sum())
        self._noise_since += variance * size
        self._spread += variance**2 * 2 * size
        if step < self._first + FIRST:
            self._sums += norms
            self._noise += variance
        if step == min(self._first + FIRST, self._mechanism.steps) - 1:
            self._tell()

    def logs(self) -> dict[str, float]:
        """Return the ratio of noise to signal since the last call, by root mean squares of norms.

        A lower bound where the signal is below what the noise lets one see.
        """
        if not self._noise_since:
            return {}
        least = math.sqrt(self._spread)
        signal = max(self._since - self._noise_since, least)
        found = math.sqrt(self._noise_since / signal)
        self._since = self._noise_since = self._spread = 0.0
        return {"noise_to_signal": found}

    def _tell(self) -> None:
        """Log which weights moved, which did not, and by how much against the noise."""
        steps = min(FIRST, self._mechanism.steps - self._first)
        moved = [
            float((_some(p) - before).double().square().mean().sqrt())
            for (_, p), before in zip(self._trained, self._before, strict=True)
        ]
        names = [name for name, _ in self._trained]
        expected = self._noise * self._sizes
        z = (self._sums - expected) / (self._noise * np.sqrt(2 * self._sizes / steps))
        still = [name for name, far in zip(names, moved, strict=True) if far == 0]
        quiet = [name for name, far, value in zip(names, moved, z, strict=True) if far and value < SEEN]
        frozen = len(self._all) - len(self._trained)
        lines = [
            f"after {steps} releases: {len(names) - len(still)} of {len(names)} trained tensors moved, by"
            f" {min(moved):.2g} to {max(moved):.2g} (root mean square);"
            f" {frozen} frozen ones are as they were."
        ]
        if still:
            lines.append(f"not moved at all (a learning rate of 0?): {_listed(still)}")
        if quiet:
            lines.append(f"moved by no more than noise so far: {_listed(quiet)}")
        signal = np.maximum(self._sums - expected, 0.0)
        best = int(np.argmax(np.where(expected > 0, signal / expected, 0)))
        lines.append(
            f"norm of the gradients released, over that of their noise:"
            f" {math.sqrt(self._sums.sum() / expected.sum()):.3g};"
            f" most in {names[best]}: {math.sqrt(self._sums[best] / expected[best]):.3g}"
        )
        (logger.warning if still else self._say)("\n  ".join(lines))


def _some(p: Tensor) -> Tensor:
    flat = p.detach().reshape(-1)
    return flat[:: max(1, len(flat) // REMEMBERED)]


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
