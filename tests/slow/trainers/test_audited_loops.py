"""An audit of canaries through loops of Accelerate and Fabric, and faults that a script may have there."""

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.runs import ledger
from anechoic.torch import BatchMemoryManager, PrivacyEngine
from tests.floats import same_bits
from tests.trainers.canaries import (
    BATCH,
    KEYS,
    MECHANISM,
    PASS,
    STEPS,
    Canaries,
    Numbers,
    Watched,
    audited,
    counted_twice,
    noise_in_half,
    sees,
    token_mean,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def accelerate(model, optimizer):
    made = pytest.importorskip("accelerate", reason="make test-all installs it").Accelerator(cpu=True)
    return (*made.prepare(model, optimizer), made.backward)


def fabric(model, optimizer, precision="32-true"):
    fabrics = pytest.importorskip("lightning.fabric", reason="make test-all installs it")
    made = fabrics.Fabric(accelerator="cpu", devices=1, precision=precision)
    return (*made.setup(model, optimizer), made.backward)


def in_half(model, optimizer):
    """Weights of the model in bfloat16, after make_private."""
    return fabric(model, optimizer, "bf16-true")


@pytest.fixture(params=[accelerate, fabric])
def door(request):
    return request.param


def start(door):
    """(the watched run, model, optimizer, loader, backward)"""
    watched = Watched(Canaries())
    model, private, loader = PrivacyEngine(**KEYS).make_private(
        module=watched.model,
        optimizer=watched.optimizer,
        data_loader=DataLoader(Numbers(), batch_size=BATCH, shuffle=True),
        mechanism=MECHANISM,
    )
    watched.batches, watched.loader = loader.feed.batches, loader
    model, optimizer, backward = door(model, private)
    parts = BatchMemoryManager(data_loader=loader, max_physical_batch_size=BATCH // 2, optimizer=private)
    return watched, model, optimizer, parts.__enter__(), backward


def right(watched, model, optimizer, parts, backward, *, loss=None, before=None):
    """The loop; `before` is called before each step."""
    while len(watched.rows) < STEPS:
        for batch in parts:
            optimizer.zero_grad()
            backward(model(**batch)["loss"] if loss is None else loss(model, batch))
            if before is not None:
                before(watched)
            optimizer.step()


def trained(door):
    """(the watched run, its batches), of all steps."""
    watched, *objects = start(door)
    right(watched, *objects)
    return watched, watched.batches


def test_it_passes_its_audit(door):
    report = audited(*trained(door))
    assert not report.violated, report


@pytest.mark.parametrize("fault", [counted_twice, noise_in_half])
def test_the_audit_sees_a_fault_of_the_library(door, monkeypatch, fault):
    fault(monkeypatch)
    assert sees(fault, lambda: trained(door))


# -- faults of a script ----------------------------------------------------------------------------


def counts_twice(watched, model, optimizer, parts, backward):
    """Accumulation: what a part gives is added up twice before the step."""
    for batch in parts:
        optimizer.zero_grad()
        for _ in range(2):
            backward(model(**batch)["loss"])
        optimizer.step()


def adds_up(watched, model, optimizer, parts, backward):
    """Accumulation: what is there of the last part is not cleared."""
    for batch in parts:
        backward(model(**batch)["loss"])
        optimizer.step()


def drops_last(watched, model, optimizer, parts, backward):
    """The last batch of a pass is delivered, and not trained on."""
    for _ in range(2):
        for number, batch in enumerate(parts):
            if number // 2 == PASS - 1:
                continue
            optimizer.zero_grad()
            backward(model(**batch)["loss"])
            optimizer.step()


def drops_last_part(watched, model, optimizer, parts, backward):
    """The last part of each batch is not trained on."""
    for number, batch in enumerate(parts):
        optimizer.zero_grad()
        if number % 2 == 0:
            backward(model(**batch)["loss"])
        optimizer.step()


def over_the_batch(*objects):
    right(*objects, loss=token_mean)


def frozen_moves(*objects):
    def moves(watched):
        watched.model.frozen.data += 1e-3

    right(*objects, before=moves)


def evaluation_trains(*objects):
    def trains(watched):
        if len(watched.rows) == PASS:
            watched.weight.data += 1e-3

    right(*objects, before=trains)


REFUSED = (DesynchronizedError, GuaranteeError, MismatchError)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (counts_twice, "2 backward passes"),
        (adds_up, "haven't been cleared"),
        (drops_last, "its optimizer.step.. is missing"),
        (drops_last_part, "no gradient reached"),
        (over_the_batch, "mixes the rows"),
        (frozen_moves, "frozen changed during training"),
        (evaluation_trains, "changed by something else than"),
    ],
)
def test_a_fault_of_a_script_is_refused(door, fault, words):
    watched, *objects = start(door)
    with pytest.raises(REFUSED, match=words):
        fault(watched, *objects)
    assert len(watched.rows) < STEPS


def test_weights_in_half_precision_are_refused():
    watched, *objects = start(in_half)
    with pytest.raises(REFUSED, match="parameter"):
        right(watched, *objects)
    assert not watched.rows


def test_micro_batches_take_the_optimizer_that_a_framework_made(door):
    """The same run, bit for bit, with the optimizer of make_private or what prepare() made of it."""
    found = []
    for wrapped in (False, True):
        ledger._MADE.clear()
        watched, model, optimizer, parts, backward = start(door)
        if wrapped:
            given = BatchMemoryManager(
                data_loader=watched.loader, max_physical_batch_size=BATCH // 2, optimizer=optimizer
            )
            parts = given.__enter__()
        right(watched, model, optimizer, parts, backward)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert same_bits(*found)
