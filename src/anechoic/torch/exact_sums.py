"""What exact_sums= of make_private means for a mechanism: its grid."""

from __future__ import annotations

from dataclasses import replace

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism import Mechanism
from anechoic.noise.grid import default_bits
from anechoic.torch.sources import source_class


def check_exact_sums(exact_sums: bool | None, mechanism: Mechanism | str, mode: str) -> None:
    """Refuse exact sums that are not the mechanism's, or where there are no single contributions.

    Args:
        exact_sums: as given to make_private.
        mechanism: a Mechanism, which has a grid or none, or the name of a strategy to plan.
        mode: grad_sample_mode.

    Raises:
        ValueError: if exact_sums is no truth value.
        MismatchError, UnsupportedError: naming the remedy.
    """
    if exact_sums not in (None, True, False):
        raise ValueError(f"exact_sums={exact_sums!r} must be True, False or None.")
    bits = mechanism.grid_bits if isinstance(mechanism, Mechanism) else None
    given = bits is not None
    if isinstance(mechanism, Mechanism) and exact_sums not in (None, given):
        raise MismatchError(
            f"exact_sums={exact_sums}, but the mechanism has grid_bits={bits}: the grid is a part"
            " of it. Leave exact_sums out, or use dataclasses.replace(mechanism, grid_bits=…)."
        )
    if (given or exact_sums) and not source_class(mode).takes_grid:
        raise UnsupportedError(
            f"grad_sample_mode={mode!r} with exact sums: it never has the gradient of a single example, which"
            " is what is rounded to the grid. Use 'hooks', or exact_sums=False and no grid_bits."
        )


def on_grid(mechanism: Mechanism, dimension: int, epsilon: float | None) -> Mechanism:
    """`mechanism` with the default grid of `dimension` entries, and still within `epsilon`."""
    found, growth = replace(mechanism, grid_bits=default_bits(dimension)), 2.0**-24
    while found.drift and epsilon is not None and found.epsilon() > epsilon:
        found, growth = replace(found, noise_std=mechanism.noise_std * (1 + growth)), 4 * growth
    return found
