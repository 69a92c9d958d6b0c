"""The state file: one holder, whole tables, and kill -9 between any two lines."""

import gc
import json
import subprocess
import sys

import pytest

import anechoic.runs
from anechoic.errors import CheckpointError, GuaranteeError
from anechoic.runs.database import Database
from anechoic.runs.file_lock import LockedFile
from anechoic.runs.private_table import PrivateTable
from anechoic.runs.settings_check import difference
from anechoic.runs.state_file import StateFile
from tests.runs.kills import folders, killed_at, lines_of_a_run, places

KEY, STEPS = bytes(range(32)), 4


class Sums(StateFile):
    """A small state: a sum, whose rows are released with the salt of the opening as noise."""

    KIND, SHOWN, TABLES = "sum", (), ("who",)
    NEW_RUN, AGAIN, OTHERWISE = "Begin again.", "look where it stands", "Open another one."

    def step(self, published):
        with self.transaction():
            total = json.loads(self.held() or b"0") + 1
            row = total.to_bytes(8, "little") + self.openings[-1][1]
            self.tables["who"].write({total.to_bytes(16, "little"): b"x" * total})
            self.append(self.made, None, row)
            self.keep(json.dumps(total).encode())
        with open(published, "ab") as log:
            log.write(row)


def run(path, published):
    state = Sums(path, identity="{}", key=KEY)
    while state.made < STEPS:
        state.step(published)
    state.close()


def test_killed_anywhere_it_goes_on_and_shows_each_release_once(tmp_path):
    total = lines_of_a_run(run, tmp_path / "all", tmp_path / "all.log", rooms=folders(anechoic.runs))
    deaths = 0
    for place in places(total, 25):
        path, published = tmp_path / f"{place}", tmp_path / f"{place}.log"
        deaths += killed_at(run, place, path, published, rooms=folders(anechoic.runs))
        run(path, published)
        state = Sums(path, identity="{}", key=KEY)
        rows = [row for (row,) in state._database.run("SELECT row FROM releases ORDER BY step")]
        assert [int.from_bytes(row[:8], "little") for row in rows] == list(range(1, STEPS + 1))
        data = published.read_bytes()
        shown = [data[start : start + 24] for start in range(0, len(data), 24)]
        assert set(shown) <= set(rows) and len(set(shown)) == len(shown) >= STEPS - 1
        assert len(state.tables["who"].all()) == json.loads(state.held()) == STEPS
        state.close()
    assert deaths >= 23


def test_a_file_has_one_holder(tmp_path):
    path = tmp_path / "s"
    first = LockedFile(path)
    with pytest.raises(GuaranteeError, match="open in this process already"):
        LockedFile(path)
    code = "import sys; from pathlib import Path; from anechoic.runs.file_lock import LockedFile"
    command = [sys.executable, "-c", f"{code}; LockedFile(Path(sys.argv[1]))", str(path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode and "is open in another process" in refused.stderr
    first.close()
    second = LockedFile(path)
    del second
    gc.collect()  # what nobody can close any more is given back
    third = LockedFile(path)
    path.unlink()
    with pytest.raises(GuaranteeError, match="was moved, removed or replaced"):
        third.check()
    with pytest.raises(CheckpointError, match="No such file or directory.*: name a file"):
        LockedFile(tmp_path / "none" / "s")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM who WHERE id = (SELECT min(id) FROM who)",
        "UPDATE who SET content = zeroblob(1) WHERE id = (SELECT max(id) FROM who)",
        "INSERT INTO who VALUES (zeroblob(3), 'x')",
        "DELETE FROM who",
    ],
)
def test_a_row_that_is_missing_or_another_one_is_seen(tmp_path, statement):
    database = Database(tmp_path / "s", "begin again")
    database.run("CREATE TABLE who (id BLOB PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID")
    first, contents = PrivateTable(database, "who"), {bytes([i]) * 16: b"once" for i in range(5)}
    first.write(contents)
    first.write({bytes([2]) * 16: b"more"})
    again = PrivateTable(database, "who")
    assert again.digest == first.digest and again.all() == contents | {bytes([2]) * 16: b"more"}
    assert again.fetch([bytes(16), b"nobody"]) == {bytes(16): b"once"}
    database.run(statement)
    assert PrivateTable(database, "who").digest != first.digest
    database.close()


def test_what_differs_is_named():
    was, now = {"a": {"b": 1, "c": "x"}, "d": [1]}, {"a": {"b": 2, "c": "x"}, "d": [2]}
    assert difference(json.dumps(was), json.dumps(now)) == "a.b (was 1, is 2), d differ"
    assert difference("{}", " {}") == "it is written differently"
    assert "cannot be read" in difference("[", "{}")
