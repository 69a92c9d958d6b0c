"""Every model of the table in every mode: a release is that of single rows, or the model is refused."""

from itertools import product

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from anechoic.errors import AnechoicError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from tests.marks import slow
from tests.torch.models import SHAPES, B

pytestmark = pytest.mark.filterwarnings("ignore")
#: Under half precision sums are as coarse as that; on a grid by its spacing.
EXACT, COARSE, GRID = 3e-5, 3e-2, 23


class Rows(Dataset):
    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts[-1])

    def __getitem__(self, index):
        return tuple(part[index] for part in self.parts)


def releases(shape, data, mode, sampling, clip_norm=1.0):
    """The model, and (batch, released sum) of every step; weights stay as they are."""
    model, exact = shape.made()[0], mode == "exact"
    trained = [p for p in model.parameters() if p.requires_grad]
    made = PrivacyEngine(noise_key=bytes(32), sampling_key=bytes(range(32))).make_private(
        module=model,
        optimizer=torch.optim.SGD(trained, lr=0.0),
        criterion=shape.loss,
        grad_sample_mode="rows" if exact else mode,
        data_loader=DataLoader(Rows(data), batch_size=int(sampling.expected_size(0))),
        mechanism=Mechanism(
            Identity(sampling.steps), sampling, 1e-4 if exact else 1e-8, clip_norm,
            grid_bits=GRID if exact else None,
        ),
        **shape.options,
    )  # fmt: skip
    module, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if len(made) == 4 else shape.loss
    torch.manual_seed(3)
    found = []
    for _ in range(sampling.steps):
        for batch in loader:
            *inputs, target = batch
            optimizer.zero_grad()
            criterion(shape.output(module, inputs), target).backward()
            optimizer.step()
            gradients = torch.cat([p.grad.double().flatten() for p in trained])
            found.append((batch, gradients * optimizer.expected_batch_size))
        if optimizer.ledger.releases == sampling.steps:
            return model, found


def single_rows(shape, model, data, clip_norm=1.0):
    """The same by a loop over single rows with plain autograd, in float64."""
    trained, total = [p for p in model.parameters() if p.requires_grad], 0.0
    for row in range(len(data[-1])):
        *inputs, target = (part[row : row + 1] for part in data)
        model.zero_grad()
        shape.loss(shape.output(model, inputs), target).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        vector = torch.cat([part.double().flatten() for part in parts])
        total = total + vector * min(1.0, clip_norm / max(float(vector.norm()), 1e-300))
    return total


def one(shape, data, mode):
    """The model, and the sum of one batch of all rows."""
    count = len(data[-1])
    model, [(_, found)] = releases(shape, data, mode, FixedOrder(count, count, steps=1))
    return model, found


TOGETHER = [name for name, shape in SHAPES.items() if not shape.alone]
CASES = [
    *product(SHAPES, ("rows",)),
    *product(list(SHAPES)[::3], ("exact",)),
    *product(list(SHAPES)[::6], ("vmap_loss",)),
    *product(TOGETHER[::3], ("ghost",)),
]
EVERY = [*product(SHAPES, ("exact", "vmap_loss")), *product(TOGETHER, ("ghost",))]
REST = [case for case in EVERY if case not in CASES]


@pytest.mark.parametrize(("name", "mode"), [*CASES, *slow(*REST)])
def test_a_release_is_that_of_single_rows_and_one_row_moves_it_by_the_clip_norm(name, mode, caplog):
    shape = SHAPES[name]
    data = shape.made()[1]
    try:
        model, found = one(shape, data, mode)
    except AnechoicError as error:
        assert len(str(error)) > 20 and (shape.mixes or mode == "ghost"), error
        return
    assert not shape.mixes
    assert ("one after another" in caplog.text) == (shape.loops and mode != "ghost")
    bound = COARSE if shape.half or "bfloat16" in name else 2e-3 if mode == "exact" else EXACT
    if shape.random:  # masks follow the place of a row
        other = one(shape, tuple(torch.cat([part[5:6], part[1:]]) for part in data), mode)[1]
        assert (found - other).norm() <= 2 + bound
        return
    expected = single_rows(shape, model, data)
    assert (found - expected).norm() <= bound * max(1.0, float(expected.norm()))
    rest = one(shape, tuple(part[1:] for part in data), mode)[1]
    assert (found - rest).norm() <= 1 + bound


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TOGETHER if name not in ("time first", "batch norm")])
def test_releases_of_drawn_batches_and_of_empty_ones(name):
    shape = SHAPES[name]
    model, found = releases(shape, shape.made()[1], "rows", Poisson(B, 2, steps=8), clip_norm=0.5)
    assert {0} < {len(batch[-1]) for batch, _ in found}
    for batch, released in found:
        if len(batch[-1]) == 0:
            assert released.norm() < 1e-5
        elif not shape.random:
            expected = single_rows(shape, model, batch, 0.5)
            bound = COARSE if shape.half or "bfloat16" in name else EXACT
            assert (released - expected).norm() <= bound * max(1.0, float(expected.norm()))
