"""A server that stops anywhere and starts again from its state, with nodes registered anew."""

import shutil

import pytest
from flwr.serverapp.strategy import FedAvg

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.flower import Partitions, PublicKeys
from anechoic.flower.grid import Fate
from anechoic.flower.records import arrays_of, record_of
from tests.flower import small


class Killed(BaseException):
    """The process ends here."""


def strategy(folder, **options):
    return small.strategy(state=folder / "state", key=None, **options)


def models_of(found, grid):
    models = []
    found.start(
        grid,
        record_of(small.initial()),
        evaluate_fn=lambda number, arrays: models.append(arrays_of(arrays)) if number else None,
    )
    return models


@pytest.mark.parametrize(
    ("when", "masked"),
    [("asked", False), ("before the close", False), ("closed", False), ("before the close", True)],
)
@pytest.mark.slow
def test_it_goes_on_bit_for_bit(tmp_path, when, masked):
    """Killed in the middle of round 4: the same clients, rows and models as without."""
    new = strategy(tmp_path, masked=masked)
    new.open(record_of(small.initial()))
    new.close()
    shutil.copytree(tmp_path / "state", tmp_path / "other" / "state")
    whole = models_of(strategy(tmp_path / "other", masked=masked, adopt=True), small.grid())

    first = strategy(tmp_path, masked=masked)
    grid, asked, models = small.grid(), [], []
    server = first.open(record_of(small.initial()))
    close = type(server).close

    def killed_close(own, found):
        if own.step == 3 and when == "before the close":
            raise Killed
        closed = close(own, found)
        if closed.step == 3 and when == "closed":
            raise Killed
        return closed

    real_configure = first.configure_train

    def configure(number, *arguments):
        messages = real_configure(number, *arguments)
        asked.append((number, first._round.asked.clients))
        if number == 4 and when == "asked":
            raise Killed
        return messages

    patch = pytest.MonkeyPatch()
    patch.setattr(type(server), "close", killed_close)
    patch.setattr(first, "configure_train", configure)
    with pytest.raises(Killed):
        first.start(
            grid,
            record_of(small.initial()),
            evaluate_fn=lambda number, arrays: models.append(arrays_of(arrays)) if number else None,
        )
    first.close()
    patch.undo()

    grid.restart()
    second = strategy(tmp_path, masked=masked)
    server = second.open(record_of(small.initial()))
    if when == "closed":
        models.append(server.model)  # it was released, and nobody had seen it
    else:
        resumed = server.ask([])
        assert resumed.resumed and set(resumed.clients) == set(asked[-1][1])
    models += models_of(second, grid)
    small.same(models, whole)
    summary = second.report().ledger
    assert summary.participations == small.ROUNDS * small.PER_ROUND and summary.nearest >= 3
    second.close()


def test_who_was_asked_before_a_restart_may_be_gone(tmp_path):
    first = strategy(tmp_path, min_available=1)
    grid = small.grid()
    list(first.configure_train(1, record_of(small.initial()), small.ConfigRecord(), grid))
    gone = first._round.asked.clients[0]
    first.close()
    grid.restart()
    grid.online = lambda place: place != gone
    second = strategy(tmp_path, min_available=1, patience=1.0)
    assert len(models_of(second, grid)) >= 1
    assert second.report().replies >= small.PER_ROUND - 1


def test_a_finished_run_gives_its_model_again(tmp_path):
    first = strategy(tmp_path)
    whole = models_of(first, small.grid())
    first.close()
    second = strategy(tmp_path)
    result = second.start(small.grid(), record_of(small.initial()))
    small.same([arrays_of(result.arrays)], whole[-1:])
    assert second.stopped is None


def test_the_ledger_knows_clients_by_their_keys(tmp_path):
    """New node ids at each registration, the same keys: nobody is asked again before its time."""
    keys = [b"-----BEGIN PUBLIC KEY-----\n%d" % node for node in range(small.CLIENTS)]
    grid = small.grid(public_keys=keys, fate=lambda *_: Fate.ANSWERED)
    for rounds in range(1, small.ROUNDS + 1):
        found = strategy(tmp_path, identity=PublicKeys())
        found.start(grid, record_of(small.initial()), rounds)
        grid.restart()
        summary = found.report().ledger
        found.close()
    assert summary.participations == small.ROUNDS * small.PER_ROUND
    assert summary.nearest >= 3


@pytest.mark.parametrize(
    "other",
    [
        {"identity": PublicKeys()},
        {"identity": Partitions("who")},
        {"masked": True},
        {"unprotected_metrics": ["loss"]},
        {"unprotected_evaluation": FedAvg()},
    ],
    ids=["keys", "other names", "masked", "metrics", "evaluation"],
)
def test_a_run_goes_on_as_it_was_begun(tmp_path, other):
    """Clients known by something else are others, and a statement must not forget what left before."""
    first = strategy(tmp_path)
    first.open(record_of(small.initial()))
    first.close()
    with pytest.raises(MismatchError, match=r"setting|identity"):
        strategy(tmp_path, **other).open(record_of(small.initial()))


def test_a_mechanism_of_another_unit_is_refused():
    made = small.mechanism(unit="user")
    with pytest.raises(MismatchError, match="tells clients apart"):
        small.strategy(mechanism=made).open(record_of(small.initial()))


def test_a_run_that_the_budget_book_does_not_cover_does_not_begin(tmp_path):
    book = BudgetBook(tmp_path / "b.db", "phones")
    book.grant(9.0, 1e-5, unit="client")
    small.strategy(book=book, key=None).start(small.grid(), record_of(small.initial()), 1)
    assert [one.status for one in book.account().live] == ["spent"]
    second = small.strategy(book=book, key=None)
    with pytest.raises(GuaranteeError, match="does not cover"):
        second.start(small.grid(), record_of(small.initial()), 1)
    assert second.server is None and len(book.account().live) == 1


def test_a_state_put_back_is_another_run_for_the_budget_book(tmp_path):
    book = BudgetBook(tmp_path / "b.db", "phones")
    book.grant(9.0, 1e-5, unit="client")
    strategy(tmp_path, book=book).start(small.grid(), record_of(small.initial()), 1)
    shutil.copytree(tmp_path / "state", tmp_path / "old")
    strategy(tmp_path, book=book).start(small.grid(), record_of(small.initial()), 2)
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "old", tmp_path / "state")
    for adopt, words in ((False, "copied or moved|not its newest state"), (True, "does not cover")):
        with pytest.raises(GuaranteeError, match=words):
            strategy(tmp_path, book=book, adopt=adopt).start(small.grid(), record_of(small.initial()), 2)
    assert [one.status for one in book.account().live] == ["spent"]
