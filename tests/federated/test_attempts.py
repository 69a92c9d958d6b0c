"""Short attempts: whom the step was charged to is asked first, and a run does not starve of failures."""

import numpy as np
import pytest

from anechoic import federated
from anechoic.federated.client_selection import RecentAttempts, chosen
from anechoic.federated.ledger import ParticipationLedger
from anechoic.federated.participation_policy import SPARE
from tests.federated.small import KEY, small_server, update_of


class Rounds:
    """Choice and charges of a run without its vectors: as `Server.ask` and `close` have them."""

    def __init__(self, policy, clients, most, fewest=1):
        self.ledger = ParticipationLedger(policy, KEY)
        self.everybody = self.ledger.clients(range(clients))
        self.most, self.fewest = most, fewest
        self.step = self.attempt = 0
        self.attempts = RecentAttempts()

    def run(self, answers):
        """One attempt; those asked, of whom `answers` says who does."""
        picked = chosen(
            self.ledger,
            self.everybody,
            self.step,
            self.attempt,
            most=self.most,
            fewest=self.fewest,
            key=KEY,
            earlier=self.attempts,
        )
        self.ledger.charge(picked, self.step)
        asked = picked.ids.tolist()
        present = {client for client in asked if answers(client)}
        if len(present) >= self.fewest:
            self.step, self.attempt, self.attempts = self.step + 1, 0, RecentAttempts()
        else:
            self.attempt += 1
            self.attempts.note(asked, present)
        return asked


@pytest.mark.parametrize("fewest", [1, 30])
@pytest.mark.parametrize("failing", [{1}, {1, 4, 9, 16, 25}, set(range(0, 200, 10)), set(range(20))], ids=len)
@pytest.mark.few(5)
def test_failed_attempts_use_nobody_up(failing, fewest):
    """1,000 clients, 50 a round, a rest of 20: just as many as there must be, and not one to spare."""
    rounds, attempt = Rounds(federated.MinSeparation(20), 1000, 50, fewest), 0
    while rounds.step < 100:
        rounds.run(lambda client: attempt not in failing)  # noqa: B023
        attempt += 1
    summary = rounds.ledger.summary()
    assert summary.participations == 100 * 50 and summary.nearest == 20


def test_those_who_answered_come_first_then_the_charged_then_others():
    rounds = Rounds(federated.MinSeparation(5), 100, 10, fewest=8)
    first = rounds.run(lambda client: False)
    assert rounds.run(lambda client: client in first[:6]) == first, "nobody answered: the same ones again"
    second = rounds.run(lambda client: client in first[:4])
    assert set(second) == set(first)
    third = rounds.run(lambda client: True)
    assert set(first[:6]) <= set(third) and not set(first[6:]) & set(third), "silent twice: others come"
    assert rounds.step == 1


def test_who_is_not_there_any_more_makes_room():
    rounds = Rounds(federated.MinSeparation(5), 100, 10, fewest=8)
    first = rounds.run(lambda client: False)
    rounds.everybody = rounds.everybody.only(~np.isin(np.arange(100), first[:3]))
    again = rounds.run(lambda client: True)
    assert set(first[3:]) < set(again) and len(again) == 10


@pytest.mark.parametrize(("clients", "tight"), [(1000, True), (1199, True), (1200, False), (5000, False)])
def test_a_plan_without_slack_is_called_out(clients, tight):
    found = federated.MinSeparation(20).check_supply(rounds=100, clients=clients, per_round=50)
    assert (found is not None) == tight and SPARE == 1.2
    if tight:
        assert "1000 are needed at least" in found and "Plan for 1200 clients" in found


# -- more are asked than are needed ----------------------------------------------------------------


def over_selecting(over_selection=0.5):
    return small_server(federated.MinSeparation(2), per_round=4, over_selection=over_selection)


def test_a_round_that_asks_more_is_full_with_its_divisor_and_charges_all_it_asked():
    server = over_selecting()
    asked = server.ask(range(30))
    assert len(asked.clients) == server.asked_per_round == 6 and asked.target == 4
    for client in asked.clients[:4]:
        assert not asked.full
        assert asked.add(client, update_of(client, 0)) is None
    before = asked.total.copy()
    assert asked.full
    assert (
        asked.add(asked.clients[4], update_of(asked.clients[4], 0)) == "more replies than the round asked for"
    )
    np.testing.assert_array_equal(asked.total, before)
    closed = server.close(asked)
    assert closed.released and closed.answered == 4
    assert server.report().ledger.participations == 6
    later = server.ask(range(30))
    assert not set(later.clients) & set(asked.clients), "who was asked and not needed rests like the others"


def test_the_divisor_and_the_noise_are_those_of_a_round_without(recorder):
    updates = []
    for part in (0, 0.5):
        server = over_selecting(part)
        asked = server.ask(range(30))
        vectors = np.arange(20).reshape(4, 5)
        for client, vector in zip(asked.clients, vectors, strict=False):
            asked.add(client, vector)
        updates.append(server.close(asked).update)
    np.testing.assert_array_equal(*updates)


@pytest.mark.parametrize(("part", "asked"), [(0, 50), (0.3, 65), (0.01, 51), (0.1, 55), (1, 100)])
def test_so_many_are_asked(part, asked):
    server = small_server(federated.MinSeparation(2), per_round=50, over_selection=part)
    assert server.asked_per_round == len(server.ask(range(300)).clients) == asked


@pytest.mark.parametrize("part", [-0.1, float("nan"), float("inf"), "x", True])
def test_parts_out_of_range_are_refused(part):
    with pytest.raises(ValueError, match="over_selection="):
        over_selecting(over_selection=part)
