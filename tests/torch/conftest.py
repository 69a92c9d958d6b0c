"""Tests compare runs under one noise key, each of which stands for a process of its own."""

import pytest

from anechoic.runs import ledger


@pytest.fixture
def one_process():
    """Ask for this where a test is about two runs in one process."""


@pytest.fixture(autouse=True)
def processes_of_their_own(request, monkeypatch):
    """Let runs repeat each other's releases, unless the test asks for `one_process`."""
    if "one_process" not in request.fixturenames:
        monkeypatch.setattr(ledger, "_check_first", lambda key_hash, step: None)
