"""Tests compare runs under one noise key, each of which stands for a process of its own."""

import pytest

from anechoic.runs import ledger
from anechoic.torch.randomness import modes, rng_stack
from anechoic.torch.row_types import following
from anechoic.torch.row_types.labels import tensors_alive

#: Tensors of test modules, which are frozen with all else that collection has left.
FROZEN = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish():
    FROZEN.extend(tensors_alive())


@pytest.fixture(autouse=True)
def all_tensors_are_alive(monkeypatch):
    monkeypatch.setattr(following, "tensors_alive", lambda: [*FROZEN, *tensors_alive()])


@pytest.fixture
def one_process():
    """Ask for this where a test is about two runs in one process."""
    ledger._MADE.clear()


@pytest.fixture(autouse=True)
def processes_of_their_own(request, monkeypatch):
    """Let runs repeat each other's releases, unless the test asks for `one_process`."""
    if "one_process" not in request.fixturenames:
        monkeypatch.setattr(ledger, "_check_first", lambda key_hash, step: None)


@pytest.fixture(autouse=True)
def draws_of_their_own():
    """A run that a test gives up in the middle of a batch is followed no longer, nor has generators."""
    yield
    following.ACTIVE.clear()
    modes.stop()
    rng_stack._DESK.__init__()
