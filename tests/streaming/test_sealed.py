"""What a state file shows to somebody without its key: what was published, and sizes."""

import json
import shutil
import sqlite3

import numpy as np
import pytest
from anechoic.runs.sealing import SEALED, Sealer, filled

from anechoic import streaming
from anechoic.errors import CheckpointError, MismatchError
from anechoic.participation import Single

KEY = bytes(range(32))


def stream_at(path, key=KEY):
    statistics = {"n": streaming.Count("x"), "h": streaming.Histogram(range(8), "x")}
    promise = {"epsilon": 1.0, "horizon": 40, "participation": Single(), "unit": "visitor"}
    return streaming.Stream(statistics, state=path, key=key, **promise)


def fed(stream, steps=6):
    """Feed it, and end in an open step; exact sums of the steps, in integers of the grid."""
    exact = []
    for step in range(steps + 1):
        who = [f"visitor {step} {i}" for i in range(step + 1)]
        stream.update({"x": [step] * len(who)}, unit_ids=who, batch_id=f"batch {step}")
        exact.append(stream._standing.open.copy())
        if step < steps:
            stream.release()
    return exact


def shown(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.mark.slow
def test_nothing_private_is_in_the_file_or_its_log(tmp_path):
    with stream_at(tmp_path / "s") as stream:
        exact = fed(stream)
        memory = bytes(stream._noise.saved()[3])
        private = [
            exact[-1].astype("<i8").tobytes(),
            memory[:24],
            memory[-24:],
            b"batch 3",
            b"visitor 3",
            KEY,
        ]
        for row, true in zip(rows_of(stream), exact, strict=False):
            private.append((row - true).astype("<i8").tobytes()[:24])
        while_open = shown(tmp_path)
    closed = shown(tmp_path)
    for content in private:
        assert content not in while_open and content not in closed
    assert rows_of(stream_at(tmp_path / "s"))[2].astype("<i8").tobytes() in closed  # what was published is


def rows_of(stream):
    return [stream._row(step) for step in range(stream.step)]


def test_the_rows_less_the_memory_of_the_noise_give_no_sum(tmp_path):
    """The attack: whatever eight bytes of the file are taken for noise, no row less them is an exact sum."""
    with stream_at(tmp_path / "s") as stream:
        exact = fed(stream)
        rows = rows_of(stream)
    content = (tmp_path / "s").read_bytes()
    found = 0
    for place in range(8):
        words = np.frombuffer(content[place : len(content) - (len(content) - place) % 8], "<i8")
        floats = np.nan_to_num(words.view("<f8"), nan=0, posinf=0, neginf=0)
        rounded = np.rint(np.clip(floats, -(2.0**62), 2.0**62)).astype(np.int64)
        for row, true in zip(rows, exact, strict=False):
            for guess in (words, rounded):
                # guess = noise of the count: the row less it is the count; a guess of 0 is none
                found += int(np.count_nonzero((row[0] - guess == true[0]) & (guess != 0)))
    assert found == 0


@pytest.mark.slow
def test_the_file_is_as_long_whatever_its_counts_are(tmp_path):
    sizes = []
    for records in (1, 1000):
        path = tmp_path / str(records)
        with streaming.Stream(streaming.Count(), epsilon=1.0, horizon=9, state=path, key=KEY) as stream:
            stream.update([1.0] * records)
            stream.release()
            stream.update([1.0] * records)
        database = sqlite3.connect(path)
        sizes.append(
            [
                database.execute(f"SELECT total(length({column})) FROM {table}").fetchone()
                for table, column in (("state", "sealed"), ("meta", "value"))
            ]
        )
        database.close()
    assert sizes[0] == sizes[1]


@pytest.mark.slow
def test_a_wrong_key_is_refused_by_name(tmp_path):
    stream_at(tmp_path / "s").close()
    with pytest.raises(MismatchError, match="begun with another key"):
        stream_at(tmp_path / "s", bytes(32))
    with pytest.raises(MismatchError, match="does not hold its key"):
        stream_at(tmp_path / "s", None)


@pytest.mark.usefixtures("salted")
@pytest.mark.parametrize("table", ["state", "units", "batches"])
@pytest.mark.slow
def test_parts_of_another_file_with_the_same_key_are_refused(tmp_path, table):
    for name in "st":
        with stream_at(tmp_path / name) as stream:
            fed(stream, 2)
    database = sqlite3.connect(tmp_path / "s", isolation_level=None)
    database.execute("ATTACH ? AS other", (str(tmp_path / "t"),))
    database.execute(f"DELETE FROM {table}")
    database.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")
    database.close()
    with pytest.raises(CheckpointError, match="damaged"):
        stream_at(tmp_path / "s")


def test_what_is_sealed_opens_under_its_name_and_its_file_alone():
    sealer = Sealer(KEY, b"salt")
    sealed = sealer.close(b"here", b"content")
    assert sealer.open(b"here", sealed) == b"content" and len(sealed) == len(b"content") + SEALED
    assert sealed != sealer.close(b"here", b"content")
    for other, name, data in (
        (Sealer(KEY, b"other"), b"here", sealed),
        (Sealer(bytes(32), b"salt"), b"here", sealed),
        (sealer, b"there", sealed),
        (sealer, b"here", sealed[:-1]),
        (sealer, b"here", b""),
        (sealer, b"here", None),
        (sealer, b"here", sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ):
        with pytest.raises(CheckpointError):
            other.open(name, data)


def test_text_is_filled_up():
    assert len(filled("[1]")) == len(filled("[123456789]")) and json.loads(filled("[1]")) == [1]


def test_releases_are_read_without_the_key(tmp_path):
    with stream_at(tmp_path / "s") as stream:
        fed(stream)
        made = [release.to_bytes() for release in stream.releases()]
    shutil.copy(tmp_path / "s", tmp_path / "copy")
    assert [release.to_bytes() for release in streaming.read_releases(tmp_path / "copy")] == made


@pytest.mark.slow
def test_the_file_does_not_show_how_many_units_there_are(tmp_path):
    found = []
    for many in (65, 128):
        path = tmp_path / str(many)
        stream_at(path).close()
        for some in np.array_split(np.arange(many), 3):
            with stream_at(path) as stream:
                stream.update({"x": [0] * len(some)}, unit_ids=some)
        with stream_at(path) as stream:
            stream.update({"x": [0] * many}, unit_ids=range(many))  # known, all of them: nothing is added
            assert stream.diagnostics()["beyond those of one unit that count in a step"] == many
            assert stream._standing.open[0] == many * stream.shared.units["n"]
        database = sqlite3.connect(path)
        found.append(database.execute("SELECT count(*), total(length(sealed)) FROM units").fetchone())
        database.close()
    assert found[0] == found[1] and found[0][0] == 128
