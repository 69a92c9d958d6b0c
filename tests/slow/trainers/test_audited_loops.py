"""An audit of canaries through loops of Accelerate and Fabric, and faults that a script may have there."""

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.runs import ledger
from anechoic.torch import BatchMemoryManager, PrivacyEngine
from tests.floats import same_bits
from tests.trainers import canaries

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def accelerate(model, optimizer):
    made = pytest.importorskip("accelerate", reason="make test-all installs it").Accelerator(cpu=True)
    return (*made.prepare(model, optimizer), made.backward)


def fabric(model, optimizer, precision="32-true"):
    fabrics = pytest.importorskip("lightning.fabric", reason="make test-all installs it")
    made = fabrics.Fabric(accelerator="cpu", devices=1, precision=precision)
    return (*made.setup(model, optimizer), made.backward)


@pytest.fixture(params=[accelerate, fabric])
def door(request):
    return request.param


def start(door):
    """(the watched run, model, optimizer, loader, backward)"""
    watched = canaries.Watched(canaries.Canaries())
    model, private, loader = PrivacyEngine(**canaries.KEYS).make_private(
        module=watched.model,
        optimizer=watched.optimizer,
        data_loader=DataLoader(canaries.Numbers(), batch_size=canaries.BATCH, shuffle=True),
        mechanism=canaries.MECHANISM,
    )
    watched.batches, watched.loader = loader.feed.batches, loader
    model, optimizer, backward = door(model, private)
    parts = BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=canaries.BATCH // 2, optimizer=private
    )
    return watched, model, optimizer, parts.__enter__(), backward


def right(watched, model, optimizer, parts, backward):
    while len(watched.rows) < canaries.STEPS:
        for batch in parts:
            optimizer.zero_grad()
            backward(model(**batch)["loss"])
            optimizer.step()


def trained(door):
    """(the watched run, its batches), of all steps."""
    watched, *objects = start(door)
    right(watched, *objects)
    return watched, watched.batches


def test_it_passes_its_audit(door):
    report = canaries.audited(*trained(door))
    assert not report.violated, report


@pytest.mark.parametrize("fault", [canaries.counted_twice, canaries.noise_in_half])
def test_the_audit_sees_a_fault_of_the_library(door, monkeypatch, fault):
    fault(monkeypatch)
    assert canaries.sees(fault, lambda: trained(door))


def test_micro_batches_take_the_optimizer_that_a_framework_made(door):
    """The same run, bit for bit, with the optimizer of make_private or what prepare() made of it."""
    found = []
    for wrapped in (False, True):
        ledger._MADE.clear()
        watched, model, optimizer, parts, backward = start(door)
        if wrapped:
            given = BatchMemoryManager(
                data_loader=watched.loader, max_physical_batch_size=canaries.BATCH // 2, optimizer=optimizer
            )
            parts = given.__enter__()
        right(watched, model, optimizer, parts, backward)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert same_bits(*found)
