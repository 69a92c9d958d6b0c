"""Streams with one key have one noise in these tests, as in those of streams."""

from tests.streaming.conftest import one_salt  # noqa: F401
