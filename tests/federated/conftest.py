"""Fixtures of these tests."""

import pytest

from tests.federated.small import Recorder


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)
