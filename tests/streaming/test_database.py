"""What SQLite has to say comes with its remedy, and a reader stops nobody."""

import sqlite3

import pytest

from anechoic import streaming
from anechoic.errors import CheckpointError, GuaranteeError
from tests.streaming.released import bytes_of


def count_at(path, **options):
    return streaming.Stream(streaming.Count(), epsilon=1.0, horizon=40, state=path, **options)


@pytest.mark.slow
def test_a_reader_that_holds_a_transaction_does_not_stop_the_stream(tmp_path):
    """As the sqlite3 shell, a backup, or a reader that was stopped."""
    path = tmp_path / "s"
    with count_at(path) as stream:
        stream.release()
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM releases").fetchone() == (1,)
        for _ in range(20):
            stream.update(3)
            stream.release()
        assert reader.execute("SELECT count(*) FROM releases").fetchone() == (1,)
        assert len(streaming.read_releases(path)) == 21
    with count_at(path) as stream:  # opened again beside it
        assert stream.step == 21 and stream.release().step == 21
    reader.close()
    with count_at(path) as stream:
        assert stream.step == 22


@pytest.mark.slow
def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    path = tmp_path / "s"
    with count_at(path) as stream:
        stream.steps([1] * 3)
        pages = stream._state._database.run("PRAGMA page_count")[0][0]
        stream._state._database.run(f"PRAGMA max_page_count={pages}")
        with pytest.raises(CheckpointError, match="full: make room on the disk"):
            for step in range(35):
                stream.release(f"{step:099}" * 20)
        with pytest.raises(GuaranteeError, match="open the file again"):
            stream.release()
        made = [*map(bytes_of, stream.releases())]
    with count_at(path) as stream:
        assert [*map(bytes_of, stream.releases())] == made
        assert stream.release().step == len(made)


def test_another_writer_is_said_and_waited_for(tmp_path):
    with count_at(tmp_path / "s") as stream:
        stream._state._database.run("PRAGMA busy_timeout=20")
        other = sqlite3.connect(tmp_path / "s", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CheckpointError, match="another program is writing to it"):
            stream.release()
        other.close()
        assert stream.release().step == 0  # nothing was changed: it goes on


@pytest.mark.slow
def test_a_file_that_cannot_be_opened_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be opened .*folder"):
        count_at(tmp_path / "missing" / "s")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot be opened"):
        count_at(tmp_path / "folder")


def test_one_wait_for_the_disk_a_commit(tmp_path):
    """The log is appended to; the file itself is written when there is much of it, and at the end."""
    with count_at(tmp_path / "s") as stream:
        before, size = (tmp_path / "s").read_bytes(), (tmp_path / "s-wal").stat().st_size
        stream.steps([1] * 3)
        assert (tmp_path / "s").read_bytes() == before and (tmp_path / "s-wal").stat().st_size >= size
