"""Full runs over Flower's messages: bit for bit those of the server without Flower."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import Strategy

from anechoic.errors import GuaranteeError, HorizonError
from anechoic.federated import Cohorts, FedAdam, MinSeparation
from anechoic.flower import Partitions
from anechoic.flower.identity import Roll
from anechoic.flower.records import arrays_of, record_of
from anechoic.statement.rounding import round_up
from tests.flower import small
from tests.flower.in_process import Fate, InProcessGrid


@pytest.mark.parametrize("options", [{}, {"optimizer": FedAdam(0.1)}, {"policy": Cohorts(3)}], ids=str)
def test_a_run_is_that_of_the_server_without_flower(options):
    options = {**options}
    if "policy" in options:
        options["mechanism"] = small.mechanism(policy=options["policy"])
    models, found = small.run(small.strategy(**options))
    small.same(models, small.models_without_flower(**options))
    assert found.server.finished and found.stopped is None


def test_flowers_own_loop_drives_it_too():
    models = []
    Strategy.start(
        small.strategy(),
        small.grid(),
        record_of(small.initial()),
        small.ROUNDS,
        evaluate_fn=lambda number, arrays: models.append(arrays_of(arrays)),
    )
    small.same(models[1:], small.models_without_flower())


def test_who_does_not_answer_adds_nothing_and_the_divisor_stays():
    """Late, lost and failed replies, and twice the same one: as if those clients had sent zeros, or once."""
    fates = {2: Fate.LOST, 5: Fate.LATE, 7: Fate.FAILED, 8: Fate.TWICE}
    models, found = small.run(
        over=small.grid(fate=lambda _, place: fates.get(place, Fate.ANSWERED), who=True)
    )
    expected = small.models_without_flower(answers=lambda client, step: client not in (2, 5, 7))
    small.same(models, expected)
    assert found.report().released == small.ROUNDS


def test_a_short_round_releases_nothing_and_is_repeated(caplog):
    silent = set()

    def fate(message, place):
        if message.content["config"]["server-round"] == 3 and len(silent) < 3:
            silent.add(place)
            return Fate.LOST
        return Fate.ANSWERED

    found = small.strategy(min_replies=2, patience=5.0)
    models, _ = small.run(found, small.grid(fate=fate, who=True))
    assert len(models) == small.ROUNDS
    assert found.report().short == 1
    assert found.report().ledger.participations == small.ROUNDS * small.PER_ROUND, "nobody else was charged"
    (warned,) = [record for record in caplog.records if "below min_replies" in record.message]
    assert warned.levelname == "WARNING"
    assert "0 of 3 clients answered, below min_replies=2" in warned.message
    assert "stay charged" in warned.message


def test_a_population_that_is_gone_stops_the_run_with_a_reason():
    rounds = []
    found = small.strategy(patience=0.0, min_available=1)
    result = found.start(
        small.grid(online=lambda place: len(rounds) < 2),
        record_of(small.initial()),
        evaluate_fn=lambda number, arrays: rounds.append(number) if number else None,
    )
    assert "0 clients" in found.stopped
    small.same([arrays_of(result.arrays)], small.models_without_flower(rounds=2)[-1:])
    assert "Global Arrays" in repr(result), "the result is Flower's own"


def test_nobody_who_answers_stops_the_run_with_a_reason():
    found = small.strategy(patience=0.0)
    small.run(found, small.grid(fate=lambda *_: Fate.LOST, who=True))
    assert "answered" in found.stopped
    assert found.report().released == 0


def test_rounds_can_be_fewer_and_go_on_later(caplog):
    found = small.strategy()
    first, _ = small.run(found, small.grid(), rounds=2)
    assert "num_rounds=2 ends this start before the 6 rounds that noise is planned for" in caplog.text
    caplog.clear()
    second, _ = small.run(found, small.grid(), rounds=small.ROUNDS)
    assert "num_rounds" not in caplog.text
    small.same(first + second, small.models_without_flower())
    with pytest.raises(HorizonError, match="exceeds the 6"):
        small.run(found, rounds=7)


def test_the_log_begins_with_what_is_guaranteed(caplog):
    with caplog.at_level("INFO", logger="flwr"):
        found = small.strategy()
        small.run(found, rounds=1)
    assert "partition-id" in found.statement()
    text = "\n".join(record.message for record in caplog.records)
    head = text[: text.index("[ROUND 1/1]")]
    epsilon = round_up(found.server.mechanism.epsilon())
    for words in (
        f"({epsilon}, 1e-05)-differential privacy for one client, of 6 rounds together",
        "Policy: MinSeparation(separation=3, max_participations=None); at most 3 clients a round, and",
        "every sum is divided by 3; 1 answer at least",
        "Horizon: 0 of 6 rounds released; no state directory",
    ):
        assert words in head, words


@pytest.mark.parametrize(("epsilon", "warned"), [(0.5, True), (1000.0, False)])
def test_noise_longer_than_all_updates_is_said_at_the_start(caplog, epsilon, warned):
    """Both norms by hand: of 6 rounds of 3 clients, and of C^-1 z added up in 7 parameters."""
    with caplog.at_level("INFO", logger="flwr"):
        found = small.strategy(rounds=6, population=24, epsilon=epsilon, delta=1e-3, mechanism=None)
        small.run(found, rounds=1)
    mechanism = found.server.mechanism
    end = np.linalg.inv(mechanism.strategy.to_dense()).sum(axis=0)
    noise = mechanism.noise_std * np.linalg.norm(end) * np.sqrt(7)
    assert found.server.lengths() == (pytest.approx(noise), 18.0)
    said = [record.message for record in caplog.records if "expect a model near chance" in record.message]
    assert len(said) == warned == (noise > 18.0)
    if warned:
        assert f"{np.ceil(noise / 6):.0f} clients a round" in said[0]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (MinSeparation(7), "separation=7.* nobody takes part twice"),
        (MinSeparation(6), "as long as the run of 6 rounds"),
        (Cohorts(8), "clients of 2 cohorts are never asked"),
        (Cohorts(7), "clients of 1 cohort are never asked"),
        (MinSeparation(5), None),
        (MinSeparation(6, 1), None),
        (Cohorts(6), None),
    ],
    ids=repr,
)
def test_a_rest_that_no_round_reaches_is_called_out(caplog, policy, words):
    with caplog.at_level("WARNING", logger="flwr"):
        small.strategy(policy=policy, rounds=6, population=1000, epsilon=1.0)
        small.strategy(policy=policy)
    assert len(caplog.records) == (0 if words is None else 2)
    assert all(re.search(words, record.message) for record in caplog.records)


def test_each_failing_client_is_one_line_that_stays_with_it(caplog):
    def training(message, context):
        raise ZeroDivisionError("patient 17 has no heartbeat")

    grid, seen = small.grid(small.client_app(training)), []
    real = grid.pull_messages
    grid.pull_messages = lambda ids: seen.extend(found := list(real(ids))) or found
    with caplog.at_level("INFO", logger="flwr"):
        small.run(over=grid, rounds=1)
    errors = [reply.error.reason for reply in seen if reply.has_error()]
    assert len(errors) == small.PER_ROUND
    assert not any("patient" in reason or "ZeroDivision" in reason for reason in errors)
    told = [record for record in caplog.records if "in place of an update" in record.message]
    assert len(told) == small.PER_ROUND + 1, "one for each at the server, and the kinds of the round"
    assert "NO update counted" in caplog.text
    failed = [record for record in caplog.records if "training failed" in record.message]
    assert len(failed) == small.PER_ROUND
    for record in failed:
        assert "ZeroDivisionError: patient 17 has no heartbeat (" in record.message
        assert record.exc_info is None and "\n" not in record.message and "test_run.py" in record.message


def test_there_is_no_report_before_the_first_round():
    with pytest.raises(GuaranteeError, match="no round"):
        small.strategy().statement()


def test_configuration_reaches_the_training_function():
    seen = []

    def training(message, context):
        seen.append((dict(message.content["config"]), sorted(message.content)))
        raise RuntimeError

    config = ConfigRecord({"lr": 0.25})
    found = small.strategy()
    found.start(small.grid(small.client_app(training)), record_of(small.initial()), 1, train_config=config)
    assert seen[0] == ({"lr": 0.25, "server-round": 1}, ["arrays", "config"])


PLAN = {"rounds": 5, "population": 50, "epsilon": 1.0}
MADE = small.mechanism()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"identity": "partition"}, "identity"),
        ({"mechanism": None}, "mechanism"),
        ({"mechanism": None, "rounds": 5, "epsilon": 1.0}, "population"),
        ({"mechanism": MADE, "epsilon": 1.0}, "mechanism"),
        ({"mechanism": MADE, "delta": 1e-5}, "mechanism"),
        ({**PLAN, "mechanism": "best"}, "mechanism='best' is unknown"),
        (PLAN, r"50.*Give delta= yourself"),
        ({**PLAN, "epsilon": 0.0, "delta": 1e-5}, "epsilon=0.0"),
        ({**PLAN, "delta": 0.0}, "delta"),
        ({**PLAN, "population": 3, "delta": 1e-5, "clients_per_round": 4}, "different ones, but there are 3"),
        ({"state": "run"}, r"state='run' is relative, and a ServerApp.*here '/"),
        ({"state": __file__}, "is a file"),
        ({"state": "/missing/folder/run"}, "/missing/folder, which is no folder"),
        ({"state": 3}, "state=3 must be the path"),
        ({"over_selection": -1}, "over_selection=-1"),
        ({"min_replies": 0}, "min_replies=0 must be at least 1"),
        ({"min_replies": small.PER_ROUND + 1}, "min_replies=4 exceeds clients_per_round=3"),
        ({"min_replies": "2"}, "min_replies='2' must be an integer"),
        ({"exclude": "seen"}, r"exclude='seen' must be a collection of names, such as \['seen'\]"),
        ({"patience": "x"}, "patience='x' must be a number of seconds"),
        ({**PLAN, "rounds": "10"}, "rounds='10'"),
        ({**PLAN, "population": 0, "delta": 1e-5}, "population=0"),
        ({**PLAN, "delta": "x"}, "delta='x'"),
        ({"patience": float("nan")}, "patience"),
        ({"min_available": 0}, "min_available"),
        ({"clients_per_round": 0, "mechanism": MADE}, "clients_per_round"),
        ({"clip_norm": -0.5, "mechanism": MADE}, "clip_norm"),
        ({"policy": 20, "mechanism": MADE}, "MinSeparation"),
        ({"optimizer": "adam"}, "ServerOptimizer"),
        ({"adopt": "no"}, "adopt='no' must be True or False"),
    ],
)
def test_refuses(options, what):
    with pytest.raises(ValueError, match=what):
        small.strategy(**options).open(record_of(small.initial()))


def test_plans_a_mechanism_of_the_model():
    found = small.strategy(
        rounds=4, population=12, epsilon=8.0, delta=1e-4, policy=MinSeparation(2), identity=Partitions()
    )
    server = found.open(record_of(small.initial()))
    mechanism = server.mechanism
    assert (mechanism.steps, mechanism.unit, mechanism.clip_norm) == (4, "client", small.CLIP)
    assert server.layout.dimension == 7
    assert np.isclose(mechanism.epsilon(), 8.0, rtol=1e-3)


def test_rounds_ask_more_than_they_need_and_wait_for_nobody(caplog):
    """Two of twelve never answer; each round asks four, and is over with the first three."""
    grid, answered = small.grid(fate=lambda _, p: Fate.LOST if p in {3, 8} else Fate.ANSWERED, who=True), []
    real = grid._answer
    grid._answer = lambda message, place: answered.append(message) or real(message, place)
    found = small.strategy(over_selection=0.3, min_replies=3)
    with caplog.at_level("INFO", logger="flwr"):
        models, _ = small.run(found, grid, rounds=3)
    report = found.report()
    assert len(models) == 3 and report.replies == 9
    assert len(answered) == small.CLIENTS + 9, "who each is, and three a round; a fourth is not fetched"
    assert report.ledger.participations >= 12 and report.ledger.nearest in (None, 3)
    assert "at most 4 clients a round, and every sum is divided by 3" in caplog.text


def test_a_population_that_is_used_up_ends_the_run_at_once(caplog):
    """All twelve are there, and none may be asked: patience would wait for nobody."""
    options = {"rounds": 5, "population": 12, "epsilon": 8.0, "delta": 1e-5, "policy": MinSeparation(4)}
    found = small.strategy(**options, patience=1e9)
    server = found.open(record_of(small.initial()))
    server._ledger.charge(server.clients(range(12)), 0)
    server._standing.step = 1
    found.start(small.grid(nodes=12), record_of(small.initial()))
    assert "stays so for ever" in found.stopped and "no round can begin any more" in caplog.text


@pytest.mark.slow
def test_a_plan_without_slack_or_with_a_large_delta_is_called_out(caplog):
    found = small.strategy(rounds=40, population=12, epsilon=8.0, delta=0.2, policy=MinSeparation(4))
    found.open(record_of(small.initial()))
    assert "12 are needed at least" in caplog.text and "more than 1 / population" in caplog.text


def test_clients_are_looked_up_once():
    server = small.strategy().open(record_of(small.initial()))
    looked, real = [], server.clients
    server.clients = lambda ids: looked.append(len(ids)) or real(ids)
    roll = Roll(server)
    for there in ("abc", "abc", "ca", "abcd", "d"):
        assert sorted(roll.of(dict.fromkeys(there)).ids) == sorted(there)
    assert looked == [0, 3, 4]


def test_kind_and_memory_of_the_noise_reach_the_plan():
    options = {"rounds": 6, "population": 1000, "epsilon": 8.0, "policy": MinSeparation(3)}
    for memory, bands in ((None, 3), (7 * 8 * 2, 2)):
        found = small.strategy(mechanism="banded", memory_budget=memory, **options)
        assert found.open(record_of(small.initial())).mechanism.strategy.structure.bands == bands


def test_the_quickstart_of_the_page_runs_to_its_last_round(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "flower.md").read_text("utf-8")
    model, *apart = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(model, common := {})
    apps = [{"Net": common["Net"]} for _ in apart]
    for code, names in zip(apart, apps, strict=True):
        exec(code, names)
    nodes = int(re.search(r"num-supernodes=(\d+)", page)[1])
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    apps[0]["app"](InProcessGrid(apps[1]["app"], nodes), context)
    said = capsys.readouterr()
    assert "20 of 20 rounds" in said.out and "least" not in said.err, "the plan has room"


WITHOUT = """
import sys
import anechoic.federated
assert "flwr" not in sys.modules, "anechoic.federated loads Flower"
sys.modules["flwr"] = None  # as if it were not installed
import anechoic.flower
"""


def test_without_flower_the_error_names_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ImportError: anechoic.flower needs Flower" in done.stderr
    assert "pip install 'anechoic[flower]'" in done.stderr
