"""Private rows of a state file: what they hold, what they show, and a digest of all of them in any order."""

import contextlib

import pytest
from anechoic.runs.sealed_table import SealedTable
from anechoic.runs.sealing import Sealer

from anechoic.errors import CheckpointError
from anechoic.runs.database import Database

KEY = bytes(range(32))


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "s", "begin again")
    found.run("CREATE TABLE units (id BLOB PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID")
    with contextlib.closing(found):
        yield found


def table(database):
    return SealedTable(database, "units", 4, Sealer(KEY, b"salt"), KEY)


def contents(places, content=b"once"):
    return {bytes([place]) * 16: content for place in places}


def test_it_holds_what_was_written_last_and_shows_a_power_of_two(database):
    first = table(database)
    for places, rows in (([], 0), (range(3), 64), (range(64), 64), (range(70), 128)):
        first.write(contents(places))
        assert first.all() == contents(places)
        assert database.run("SELECT count(*), count(DISTINCT length(sealed)) FROM units") == [
            (rows, int(rows > 0))
        ]
    first.write(contents([7], b"more"))
    again = table(database)
    assert again.checked(first.state) and again.all() == contents(range(70)) | contents([7], b"more")
    assert again.fetch(contents([7, 200])) == contents([7], b"more")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM units WHERE id = (SELECT min(id) FROM units)",
        "UPDATE units SET sealed = zeroblob(length(sealed)) WHERE id = (SELECT max(id) FROM units)",
        "INSERT INTO units SELECT zeroblob(3), sealed FROM units LIMIT 1",
        "DELETE FROM units",
    ],
)
def test_a_row_that_is_missing_or_another_one_is_seen(database, statement):
    first = table(database)
    first.write(contents(range(5)))
    database.run(statement)
    assert not table(database).checked(first.state)


def test_a_row_opens_under_its_own_digest_alone(database):
    first = table(database)
    first.write(contents(range(2)))
    database.run("UPDATE units SET id = x'77' WHERE id = ?", [bytes(16)])
    with pytest.raises(CheckpointError):
        first.fetch([b"\x77"])
