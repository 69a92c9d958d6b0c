"""Tests begin ledgers under one key, each of which stands for a process of its own."""

import pytest

from anechoic.runs import ledger


@pytest.fixture(autouse=True)
def processes_of_their_own(monkeypatch):
    monkeypatch.setattr(ledger, "_MADE", {})
