"""Models that people train, by default: the sum is that of a loop over single rows."""

import importlib.util

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from tests.slow.torch.frameworks.shapes import shapes

pytestmark = pytest.mark.slow
CLIP, GRID = 0.01, 24

NEEDS = ("BERT", "GPT-2", "T5", "Llama", "Mixtral")


class Rows(Dataset):
    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, row):
        return {name: tensor[row] for name, tensor in self.tensors.items()}


def needed(name):
    wanted = "peft" if "LoRA" in name else "transformers" if any(n in name for n in NEEDS) else "torch"
    if importlib.util.find_spec(wanted) is None:
        pytest.skip(f"{wanted} is not installed")


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def released(make, tensors, loss):
    torch.manual_seed(0)
    model, rows = make(), Rows(tensors)
    count = len(rows)
    engine = PrivacyEngine(sampling_key=bytes(32), noise_key=bytes([1]) * 32)
    module, optimizer, *_, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=0.0),
        data_loader=DataLoader(rows, batch_size=count),
        poisson_sampling=False,
        mechanism=Mechanism(
            Identity(1), FixedOrder(count, count, 1), 1e-5 * CLIP, clip_norm=CLIP, grid_bits=GRID
        ),
    )
    for batch in loader:
        loss(module, batch).backward()
        optimizer.step()
    return count * torch.cat([p.grad.flatten().double() for p in trained(model)]) / CLIP


def one_by_one(make, tensors, loss):
    torch.manual_seed(0)
    model, total = make(), 0.0
    for row in range(len(Rows(tensors))):
        for p in trained(model):
            p.grad = None
        loss(model, {name: tensor[row : row + 1] for name, tensor in tensors.items()}).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]
        vector = torch.cat([part.flatten().double() for part in parts])
        total = total + vector * min(1.0, CLIP / float(vector.norm())) / CLIP
    return total


@pytest.mark.filterwarnings("ignore")  # those of the frameworks
@pytest.mark.parametrize("name", shapes())
def test_a_release_is_that_of_single_rows(name, caplog):
    needed(name)
    make, tensors, loss = shapes()[name]
    whole = released(make, tensors, loss)
    words = caplog.text
    reference = one_by_one(make, tensors, loss)
    assert float((whole - reference).norm()) <= 2e-3 * float(reference.norm())
    rest = released(make, {key: tensor[1:] for key, tensor in tensors.items()}, loss)
    assert float((whole - rest).norm()) <= 1.001
    assert "one after another" not in words
