"""Streams with one key have one noise in these tests, as in those of streams; Spark has one session."""

import pytest

from tests.streaming.conftest import one_salt  # noqa: F401


@pytest.fixture(scope="session")
def spark():
    from tests.slow.engines.spark_jobs import session  # not every machine has Spark

    made = session()
    yield made
    made.stop()


@pytest.fixture
def folder(tmp_path):
    from tests.slow.engines.spark_jobs import write_files

    write_files(tmp_path / "in")
    return tmp_path
