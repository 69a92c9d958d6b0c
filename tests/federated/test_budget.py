"""A federated run in the budget book: refused before it begins, and booked once, whatever is opened."""

import pytest

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError
from anechoic.federated import MinSeparation
from tests.federated.small import run_round, small_mechanism, small_server


def statuses(book):
    return [one.status for one in book.account().live]


@pytest.fixture
def book(tmp_path):
    """That covers one run, and not two."""
    made = BudgetBook(tmp_path / "b.db", "phones")
    made.grant(2.5, 1e-6, unit="client")
    return made


@pytest.fixture
def there():
    return list(range(12))


def test_a_second_run_is_refused_and_leaves_no_state(book, tmp_path, there):
    with small_server(book=book, key=None) as server:
        assert statuses(book) == ["reserved"]
        _, closed = run_round(server, there, silent=3)
        assert not closed.released and statuses(book) == ["reserved"]
        run_round(server, there)
        assert statuses(book) == ["spent"]
    with pytest.raises(GuaranteeError, match="does not cover"):
        small_server(
            book=book, state=tmp_path / "run", mechanism=small_mechanism(MinSeparation(3, 3), 3, epsilon=1.9)
        )
    assert not (tmp_path / "run").exists()


def test_a_round_is_not_lost_where_the_book_is_away(book, tmp_path, there):
    server = small_server(book=book)
    asked = server.ask(there)
    (tmp_path / "b.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(GuaranteeError, match="no budget book"):
        server.close(asked) if asked.answered else run_round(server, there)
    assert server.step == 0
    (tmp_path / "elsewhere.db").rename(tmp_path / "b.db")
    run_round(server, there)
    assert server.step == 1
