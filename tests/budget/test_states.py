"""Attacks on the book by states: put back, copied, adopted, continued twice; and kills between both."""

import shutil

import numpy as np
import pytest

import anechoic.budget
import anechoic.runs
from anechoic import streaming
from anechoic.budget import BudgetBook
from anechoic.errors import CheckpointError, GuaranteeError, ReplayError
from tests.federated.small import run_round, small_server
from tests.runs.kills import folders, killed_at, lines_of_a_run, places

ROUNDS = 4


def stream_at(state, book, **options):
    promise = {"epsilon": 1.0, "delta": 1e-6, "horizon": ROUNDS, "unit": "client"}
    return streaming.Stream(streaming.Count(), state=state, book=book, **promise, **options)


def histogram_at(state, book, **options):
    promise = {"epsilon": 1.0, "delta": 1e-6, "horizon": ROUNDS, "unit": "client"}
    return streaming.PartitionSelectionHistogram(state=state, book=book, **promise, **options)


def server_at(state, book, **options):
    return small_server(state=state.with_suffix(""), book=book, key=None, **options)


def released(run):
    return np.atleast_1d(run.release().only.raw)


def of_a_group(run):
    return run.steps([["ann"]])[-1].only.raw


def named(run):
    run.update(["flu"] * 900)
    return run.release().named()


def of_a_round(run):
    return run_round(run, range(12))[1].update


#: How a run is opened, makes a release, and is closed.
RUNS = {
    "stream": (stream_at, released, lambda run: run.close()),
    "stream in groups": (stream_at, of_a_group, lambda run: run.close()),
    "open histogram": (histogram_at, named, lambda run: run.close()),
    "server": (server_at, of_a_round, lambda run: run.shut()),
}


@pytest.fixture(params=RUNS)
def run(request, place, tmp_path):
    return Run(place, tmp_path, *RUNS[request.param])


class Run:
    """A run in a book, and files of it to be copied and put back."""

    def __init__(self, place, folder, opened, release, close):
        self.book = BudgetBook(place, "phones")
        # for one run, and not for two
        self.book.grant(2.4 if opened is server_at else 1.2, 2e-6, unit="client", amplified=(0.0, 8e-7))
        self.folder, self._opened, self.release, self.close = folder / "at", opened, release, close
        self.folder.mkdir()

    def open(self, folder=None, **options):
        return self._opened((folder or self.folder) / "state.db", self.book, **options)

    def go_on(self, releases, **options):
        run = self.open(**options)
        for _ in range(releases):
            self.release(run)
        self.close(run)

    def copy(self, name):
        return shutil.copytree(self.folder, self.folder.with_name(name))

    def put_back(self, copy):
        """In place: the files stay the same ones."""
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            old = copy / path.relative_to(self.folder)
            path.write_bytes(old.read_bytes()) if old.exists() else path.unlink()
        for old in [old for old in copy.rglob("*") if old.is_file()]:
            shutil.copyfile(old, self.folder / old.relative_to(copy))

    def is_refused(self, folder=None):
        """But for another charge, which the book does not cover; with more budget it is charged."""
        with pytest.raises(GuaranteeError):
            self.open(folder)
        with pytest.raises(GuaranteeError, match="does not cover"):
            self.open(folder, adopt=True)

    @property
    def charged(self):
        return [one.status for one in self.book.account().live]


def test_a_state_put_back_after_the_end_is_another_run(run):
    run.go_on(1)
    old = run.copy("old")
    run.go_on(ROUNDS - 1)
    for _ in range(2):
        run.put_back(old)
        with pytest.raises(ReplayError, match="not its newest state: another opening"):
            run.open()
        run.is_refused()
    assert run.charged == ["spent"]
    run.book.grant(9.0, 4e-6, unit="client", amplified=(0.0, 2e-6))
    run.go_on(1, adopt=True)
    assert run.charged == ["spent"] * 2
    run.go_on(1)  # from there on it is that run
    assert run.charged == ["spent"] * 2


@pytest.mark.parametrize("before", [0, 1])
def test_a_state_copied_while_it_was_open_is_another_run(run, before):
    """The newest opening is in the copy: it is the step that tells."""
    opened = run.open()
    for _ in range(before):
        run.release(opened)
    old = run.copy("old")
    run.release(opened)
    run.close(opened)
    run.put_back(old)
    with pytest.raises(ReplayError, match=f"{before + 1} releases were made, and it holds {before}"):
        run.open()
    run.is_refused()
    run.is_refused(old)
    assert run.charged == ["spent"]
    run.book.grant(9.0, 4e-6, unit="client", amplified=(0.0, 2e-6))
    for adopt in (True, False):  # from the second on it is that run
        run.go_on(1, adopt=adopt)
        assert run.charged == ["spent"] * 2


def test_a_death_within_a_release_covers_no_state_from_before_another(run):
    opened = run.open()
    run.release(opened)
    old = run.copy("old")
    run.release(opened)
    opened._booked.begin(3)  # and there the process dies
    run.close(opened)
    whole = run.copy("whole")
    run.put_back(old)
    with pytest.raises(ReplayError, match="2 releases were made, and it holds 1"):
        run.open()
    run.put_back(whole)
    with pytest.raises(GuaranteeError, match="does not cover"):
        run.open(whole, adopt=True)  # which may be older than that release
    run.go_on(ROUNDS - 2)
    assert run.charged == ["spent"]


def test_of_two_copies_that_go_on_the_second_is_another_run(run):
    run.go_on(1)
    one = run.open()
    copy = run.copy("copy")
    with pytest.raises(ReplayError, match="copied or moved"):
        run.open(copy)
    other = run.open(copy, adopt=True)  # on the user's word; nothing was released since
    with pytest.raises(GuaranteeError, match="goes on in another opening of its state"):
        run.release(one)
    run.release(other)
    run.close(one), run.close(other)
    run.is_refused()
    assert run.charged == ["spent"]


def test_opened_again_and_again_it_is_one_run(run):
    for _ in range(ROUNDS):
        run.go_on(0)
        run.go_on(1)
    run.folder.rename(run.folder.with_name("moved"))
    run.folder = run.folder.with_name("moved")
    run.go_on(0)
    assert run.charged == ["spent"]


def test_progress_that_was_edited_is_seen(tmp_path):
    run = Run(str(tmp_path / "b.db"), tmp_path, *RUNS["stream"])
    run.go_on(1)
    with run.book._place.open() as entries:
        entries._run("UPDATE progress SET body = replace(body, '1', '0')")
    with pytest.raises(CheckpointError, match="the progress of run .* is not what was written"):
        run.open()


def test_while_the_book_is_away_nothing_is_released_and_nothing_lost(tmp_path):
    run = Run(str(tmp_path / "b.db"), tmp_path, *RUNS["stream"])
    opened = run.open()
    run.release(opened)
    (tmp_path / "b.db").rename(tmp_path / "away")
    with pytest.raises(GuaranteeError, match="no budget book"):
        run.release(opened)
    (tmp_path / "away").rename(tmp_path / "b.db")
    assert opened.step == 1
    run.release(opened)
    run.close(opened)
    run.go_on(ROUNDS - 2)
    assert run.charged == ["spent"]


def try_kills(tmp_path, kills, kind):
    """After a death: the state as it is goes on under its charge; one from before too, if none was seen."""
    rooms = folders(anechoic.runs, anechoic.budget)

    def one_more(run, log):
        opened = run.open()
        run.copy("live")
        run.release(opened)
        log.write_text("seen")
        run.close(opened)

    def begun(name):
        (tmp_path / name).mkdir()
        run = Run(str(tmp_path / name / "b.db"), tmp_path / name, *RUNS[kind])
        run.go_on(1)
        return run, tmp_path / name / "log"

    total, deaths, back = lines_of_a_run(one_more, *begun("all"), rooms=rooms), 0, 0
    for place in places(total, kills):
        run, log = begun(f"{place}")
        deaths += killed_at(one_more, place, run, log, rooms=rooms)
        whole, live = run.copy("whole"), run.folder.with_name("live")
        run.put_back(live if live.exists() else whole)
        try:
            run.close(run.open())
            back += live.exists()
            assert not log.exists() or not live.exists()
        except ReplayError:
            run.put_back(whole)
        run.go_on(1)
        assert run.charged == ["spent"]
    return deaths, back


def test_killed_between_book_and_state(tmp_path):
    deaths, back = try_kills(tmp_path, 6, "stream")
    assert deaths >= 5 and back


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_killed_anywhere_between_book_and_state(tmp_path, kind):
    deaths, back = try_kills(tmp_path, 60, kind)
    assert deaths >= 50 and back
