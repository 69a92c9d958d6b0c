"""A trainer's run in the budget book: refused before training, charged by its first batch, once."""

import pytest

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError
from anechoic.trainers import Privacy
from tests.trainers.test_core import ASKED, start, train


@pytest.fixture
def book(tmp_path):
    made = BudgetBook(tmp_path / "b.db", "letters")
    made.grant(8.5, 1e-3)
    return made


def privacy(book, **options):
    fixed = {"poisson_sampling": False, "exact_sums": False, "mechanism": "identity"}
    return Privacy(**{**ASKED, **fixed, **options}, book=book)


def test_a_second_run_is_refused_and_a_resumed_one_costs_nothing(book, tmp_path):
    run, _ = start(tmp_path, privacy=privacy(book))
    assert not book.account().live
    train(run, 3)
    assert [one.status for one in book.account().live] == ["spent"]
    checkpoint = tmp_path / "out" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    run.save(str(checkpoint))
    with pytest.raises(GuaranteeError, match="does not cover"):
        start(tmp_path, privacy=privacy(book, target_epsilon=7.0))
    twin, _ = start(tmp_path, privacy=privacy(book))  # it may be the run that is booked
    with pytest.raises(GuaranteeError, match="does not cover"):
        train(twin)
    assert twin.engine.releases == 0
    again, _ = start(tmp_path, privacy=privacy(book), resume=str(checkpoint))
    again.load()
    train(again)
    assert again.engine.releases == 8 and len(book.account().live) == 1
