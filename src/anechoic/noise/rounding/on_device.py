"""One row rounded to integers where it is: as `base.advance`, on memory that lies on a device.

A row's integers are those of the real number, whatever float64 made of it on the way, within a bound that
covers sums in any order, fused or not. So a device may add as it likes; the entries that its float64 leaves
open are decided on the CPU, from their columns of the memory. What goes back into memory is exact, or made of
pairs by single operations (`double_double`), each a kernel of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anechoic.noise.device_rows import fill_on_device
from anechoic.noise.fresh import FreshRows
from anechoic.noise.host_memory import pieces
from anechoic.noise.rounding.base import (
    Block,
    RowPlan,
    check_entry,
    error_bound,
    exactly,
    inexact_part,
    made_again,
    size,
)

if TYPE_CHECKING:
    import torch

_CHUNK = 2**22  # entries that take memory for work at a time, some 100 bytes each


def advance_on_device(
    plan: RowPlan, t: int, memory: torch.Tensor, fresh: FreshRows, out: torch.Tensor
) -> int:
    """Write row t into `out`, and the memory of step t + 1 into `memory`; see `base.advance`.

    Args:
        memory: float64, shape (rows, len(out) + PAD), beside `out` or pinned on the host.
        fresh: by ChaCha20.
        out: int64.
    """
    import torch

    used, weights = plan.weights.slots.tolist(), plan.weights.floats
    lead, width, exact = float(plan.lead), len(out), 0
    carried = float(np.abs(weights) @ memory[:, width].cpu().numpy()[plan.weights.slots]) if used else 0.0
    earlier, inexact = made_again(plan, fresh), inexact_part(plan, fresh.error)
    found: list[dict[int, float]] = []
    for part, here in pieces(memory, width, _CHUNK, out.device):
        start = part.start
        own = torch.empty(part.stop - start, dtype=torch.float64, device=out.device)
        fill_on_device(fresh.row(t), own, fresh.offset + start, 1.0)
        value = own * lead
        for slot, weight in zip(used, weights.tolist(), strict=True):
            value.add_(here[slot], alpha=weight)
        largest_own, total = size(own), carried
        term = own.new_empty(len(own) if earlier else 0)
        for row, factor in earlier:
            fill_on_device(row, term, fresh.offset + start, 1.0)
            total += abs(factor) * size(term)
            value.add_(term, alpha=factor)
        error = error_bound(len(used) + len(earlier), abs(lead) * largest_own + total, inexact)
        rounded = (value + 0.5).floor_()
        off = value.sub_(rounded).abs_()  # exact, as in `advance`
        near = (off.sub_(0.5).abs_() <= error).nonzero().view(-1)
        if len(near):
            columns = here[:, near].cpu().numpy()
            decided = [
                exactly(plan, columns[:, i], t, start + place, fresh) for i, place in enumerate(near.tolist())
            ]
            rounded[near] = torch.tensor(decided, dtype=torch.float64, device=out.device)
            exact += len(decided)
        largest = size(rounded)
        check_entry(t, largest)
        out[part] = rounded.to(torch.int64)
        found.append(plan.remember(Block(here, own, rounded, largest_own, largest)))  # type: ignore[arg-type]
    for index in {index for sizes in found for index in sizes}:
        memory[index, width:] = max(sizes.get(index, 0.0) for sizes in found)
    return exact
