"""A server that stops anywhere and starts again from its state, with nodes registered anew."""

import shutil

import pytest
from flwr.app import ConfigRecord

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.flower import Partitions, PublicKeys
from anechoic.flower.records import arrays_of, record_of
from tests.flower import small


class Killed(BaseException):
    """The process ends here."""


def strategy(folder, **options):
    return small.strategy(state=folder / "state", key=None, **options)


@pytest.mark.parametrize(
    "when",
    ["before the close", *(pytest.param(when, marks=pytest.mark.slow) for when in ("asked", "closed"))],
)
def test_it_goes_on_bit_for_bit(monkeypatch, tmp_path, when):
    """Killed in the middle of round 4: the same clients, rows and models as without."""
    new = strategy(tmp_path)
    new.open(record_of(small.initial()))
    new.close()
    shutil.copytree(tmp_path / "state", tmp_path / "other" / "state")
    whole, _ = small.run(strategy(tmp_path / "other", adopt=True))

    first = strategy(tmp_path)
    grid, asked, models = small.grid(), [], []
    server = first.open(record_of(small.initial()))
    close, real_configure = type(server).close, first.configure_train

    def killed_close(own, found):
        if own.step == 3 and when == "before the close":
            raise Killed
        closed = close(own, found)
        if closed.step == 3 and when == "closed":
            raise Killed
        return closed

    def configure(number, *arguments):
        messages = real_configure(number, *arguments)
        asked.append(first._round[0].clients)
        if number == 4 and when == "asked":
            raise Killed
        return messages

    with monkeypatch.context() as patch:
        patch.setattr(type(server), "close", killed_close)
        patch.setattr(first, "configure_train", configure)
        with pytest.raises(Killed):
            first.start(
                grid,
                record_of(small.initial()),
                evaluate_fn=lambda number, arrays: models.append(arrays_of(arrays)) if number else None,
            )
    first.close()

    grid.restart()
    second = strategy(tmp_path)
    server = second.open(record_of(small.initial()))
    if when == "closed":
        models.append(server.model)  # it was released, and nobody had seen it
    else:
        resumed = server.ask([])
        assert resumed.resumed and set(resumed.clients) == set(asked[-1])
    models += small.run(second, grid)[0]
    small.same(models, whole)
    summary = second.report().ledger
    assert summary.participations == small.ROUNDS * small.PER_ROUND and summary.nearest >= 3
    second.close()


def test_who_was_asked_before_a_restart_may_be_gone(tmp_path):
    first = strategy(tmp_path, min_available=1)
    grid = small.grid()
    list(first.configure_train(1, record_of(small.initial()), ConfigRecord(), grid))
    gone = first._round[0].clients[0]
    first.close()
    grid.restart()
    grid.online = lambda place: place != gone
    second = strategy(tmp_path, min_available=1, patience=1.0)
    assert len(small.run(second, grid)[0]) >= 1
    assert second.report().replies >= small.PER_ROUND - 1


def test_a_finished_run_gives_its_model_again(tmp_path, caplog):
    first = strategy(tmp_path)
    whole, _ = small.run(first)
    first.close()
    second = strategy(tmp_path)
    with caplog.at_level("INFO", logger="flwr"):
        result = second.start(small.grid(), record_of(small.initial()))
    second.close()
    small.same([arrays_of(result.arrays)], whole[-1:])
    assert second.stopped is None
    assert "All 6 rounds of this run were released before: nothing is trained" in caplog.text
    assert f"state in {tmp_path / 'state'}" in caplog.text


def test_the_ledger_knows_clients_by_their_keys(tmp_path):
    """New node ids at each registration, the same keys: nobody is asked again before its time."""
    keys = [b"-----BEGIN PUBLIC KEY-----\n%d" % node for node in range(small.CLIENTS)]
    grid = small.grid(public_keys=keys)
    for rounds in range(1, small.ROUNDS + 1):
        found = strategy(tmp_path, identity=PublicKeys())
        found.start(grid, record_of(small.initial()), rounds)
        grid.restart()
        summary = found.report().ledger
        found.close()
    assert summary.participations == small.ROUNDS * small.PER_ROUND
    assert summary.nearest >= 3


@pytest.mark.parametrize("other", [PublicKeys(), Partitions("who")], ids=["keys", "names"])
def test_clients_that_are_known_by_something_else_are_others(tmp_path, other):
    first = strategy(tmp_path)
    first.open(record_of(small.initial()))
    first.close()
    with pytest.raises(MismatchError, match=r"setting|identity"):
        strategy(tmp_path, identity=other).open(record_of(small.initial()))


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
