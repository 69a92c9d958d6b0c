"""A selection that is killed goes on with the runs that it drew first, and shows what it would have shown."""

import math
import pickle
from itertools import count

import pytest

import anechoic as an
import anechoic.runs
import anechoic.selection
from anechoic.errors import CheckpointError, MismatchError, ReplayError, UnsupportedError
from anechoic.keys import derive
from tests.runs.kills import folders, killed_at, lines_of_a_run, places
from tests.selection.test_select import mechanism

ROOMS = folders(anechoic.runs, anechoic.selection)
CANDIDATES = [0.1, {"rate": 0.3, "steps": [2, 3]}, "largest"]


@pytest.fixture(scope="module")
def selection():
    return an.select(mechanism(), mean=5, score_on="public")


@pytest.fixture(scope="module")
def key(selection):
    """Under which there are five runs."""
    for place in count():
        found, seen = derive(b"k" * 32, "a selection", place, size=32), []
        selection.run(lambda *given, seen=seen: (seen.append(given), 0.0), CANDIDATES, key=found)
        if len(seen) == 5:
            return found


def train_into(log):
    """A `train` of keys alone, which notes its runs in a file."""

    def train(candidate, given, key):
        with open(log, "ab") as file:
            file.write(key)
        return key + b"a model", derive(key, "score", size=1)[0] // 64

    return train


def runs_of(log):
    data = log.read_bytes() if log.exists() else b""
    return [data[start : start + 32] for start in range(0, len(data), 32)]


def go_on(selection, key, state, log):
    return selection.run(train_into(log), CANDIDATES, key=key, state=state)


def try_kills(tmp_path, kills, selection, key):
    whole = selection.run(train_into(tmp_path / "whole"), CANDIDATES, key=key)
    wanted = runs_of(tmp_path / "whole")
    assert len(wanted) == 5
    total = lines_of_a_run(go_on, selection, key, tmp_path / "all", tmp_path / "all.log", rooms=ROOMS)
    deaths = 0
    for place in places(total, kills):
        state, log = tmp_path / f"{place}", tmp_path / f"{place}.log"
        died = killed_at(go_on, place, selection, key, state, log, rooms=ROOMS)
        assert go_on(selection, key, state, log) == whole
        made = runs_of(log)
        assert list(dict.fromkeys(made)) == wanted  # none besides those that were drawn
        assert len(made) <= len(wanted) + died  # and none that is stored again
        assert go_on(selection, key, state, log) == whole and runs_of(log) == made
        deaths += died
    return deaths


def test_killed_at_some_places(tmp_path, selection, key):
    assert try_kills(tmp_path, 3, selection, key) >= 2


@pytest.mark.slow
def test_killed_at_many_places(tmp_path, selection, key):
    assert try_kills(tmp_path, 150, selection, key) >= 145


def test_after_an_error_it_goes_on_with_the_key_that_the_file_holds(tmp_path, selection):
    calls, state = [], tmp_path / "s"

    def train(candidate, given, key):
        calls.append(key)
        if len(calls) == 1:
            raise ZeroDivisionError("of the user")
        return [candidate, 1], math.nan

    with pytest.raises(ZeroDivisionError, match="of the user"):
        selection.run(train, CANDIDATES, state=state)
    chosen = selection.run(train, CANDIDATES, state=state)
    assert calls[0] == calls[1] and len(set(calls)) == len(calls) - 1
    assert chosen.result == [chosen.candidate, 1] and chosen.score == -math.inf
    assert selection.run(stopped, CANDIDATES, state=state) == chosen  # all runs are stored


def stopped(*_):
    raise KeyboardInterrupt


def test_what_does_not_fit_the_state_is_refused_by_name(tmp_path, selection, key):
    state = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        selection.run(stopped, CANDIDATES, key=key, state=state)
    others = {
        "another selection: candidates differs": (selection, [*CANDIDATES, 2.0], key),
        "another selection: repetitions.mean .was 5, is 6": (
            an.select(mechanism(), mean=6, score_on="public"), CANDIDATES, key,
        ),
        "another selection: mechanism, repetitions.shape": (
            an.select(mechanism(60.0), mean=5, repetitions="logarithmic", score_on="public"), CANDIDATES, key,
        ),
        "score_mechanism differs": (
            an.select(mechanism(), mean=5, score_on="private", score_mechanism=mechanism(20.0)),
            CANDIDATES, key,
        ),
        "another key": (selection, CANDIDATES, derive(key, "other", size=32)),
        "does not hold its key": (selection, CANDIDATES, None),
    }  # fmt: skip
    for said, (other, candidates, given) in others.items():
        with pytest.raises(MismatchError, match=said):
            other.run(stopped, candidates, key=given, state=state)
    (tmp_path / "copy").write_bytes(state.read_bytes())
    with pytest.raises(ReplayError, match="copied or moved"):
        selection.run(stopped, CANDIDATES, key=key, state=tmp_path / "copy")
    adopted = selection.run(
        train_into(tmp_path / "log"), CANDIDATES, key=key, state=tmp_path / "copy", adopt=True
    )
    assert adopted == selection.run(train_into(tmp_path / "log"), CANDIDATES, key=key)
    state.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError):
        selection.run(stopped, CANDIDATES, key=key, state=state)


def test_what_a_file_cannot_hold_is_refused(tmp_path, selection):
    with pytest.raises(UnsupportedError, match="plain data"):
        selection.run(stopped, [object()], state=tmp_path / "s")
    with pytest.raises(UnsupportedError, match="io.BytesIO"):
        selection.run(lambda *_: (object(), 1.0), [1], state=tmp_path / "s")
    again = selection.run(lambda candidate, *_: (None, candidate), [1], state=tmp_path / "s")
    assert again == (None, 1, 1.0)  # the error left the file as it was


def test_a_pickled_selection_is_the_same(selection, key):
    again = pickle.loads(pickle.dumps(selection))
    assert again == selection and again.epsilon() == pytest.approx(selection.epsilon())
    assert again.run(lambda c, m, k: (k, 0.0), CANDIDATES, key=key) == selection.run(
        lambda c, m, k: (k, 0.0), CANDIDATES, key=key
    )
