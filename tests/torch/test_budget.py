"""A training run in the budget book: refused before it begins, booked once, also where it is resumed."""

import pytest

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError
from anechoic.runs import ledger
from tests.torch.setting import mechanism, start, step, train


@pytest.fixture
def book(tmp_path):
    one = mechanism()
    made = BudgetBook(tmp_path / "b.db", "flights")
    made.grant(one.epsilon(1e-6), 1e-6)
    return made


def test_a_run_is_booked_by_its_first_batch_and_a_second_one_refused(book):
    run = start(engine={"book": book}, keys=False)
    assert not book.account().live
    step(run, next(iter(run.loader)))
    assert [one.status for one in book.account().live] == ["spent"]
    assert book.account().live[0].run == run.engine._run.identity
    with pytest.raises(GuaranteeError, match="does not cover"):
        start(engine={"book": book}, keys=False, mech=mechanism(noise_std=0.6))


def test_two_runs_that_began_to_look_cannot_both_step(book):
    first, second = (start(engine={"book": book}, keys=False) for _ in range(2))
    next(iter(first.loader))
    with pytest.raises(GuaranteeError, match="does not cover"):
        next(iter(second.loader))
    assert second.engine.releases == 0


def test_a_resumed_run_is_not_booked_again(book, tmp_path, monkeypatch):
    run = start(engine={"book": book}, keys=False)
    train(run, 4)
    run.engine.save_checkpoint(path=tmp_path / "checkpoint")
    monkeypatch.setattr(ledger, "_MADE", {})  # as in another process
    run.engine._run.recorder.journal.close()
    again = start(engine={"book": book}, keys=False)
    again.engine.load_checkpoint(path=tmp_path / "checkpoint")
    train(again)
    assert again.engine.releases == 15 and len(book.account().live) == 1


def test_a_run_that_began_without_the_book_is_charged_when_it_goes_on(book, tmp_path, monkeypatch):
    run = start(keys=False)
    train(run, 4)
    run.engine.save_checkpoint(path=tmp_path / "checkpoint")
    monkeypatch.setattr(ledger, "_MADE", {})
    run.engine._run.recorder.journal.close()
    again = start(engine={"book": book}, keys=False)
    again.engine.load_checkpoint(path=tmp_path / "checkpoint")
    assert [one.status for one in book.account().live] == ["spent"]
