import gzip
import json

import numpy as np
import pytest

pytest.importorskip("torch")

from anechoic.errors import CheckpointError
from anechoic.mechanism.mechanism import Mechanism
from studies.comparison.record import lines, results
from studies.comparison.study import Outcome, load
from studies.federated.command import federate, in_words, task_of
from studies.federated.study import TUNING_SEED, federated_study
from studies.federated.tasks import ChangelogAuthors, Rounds

AUTHORS = 45
ROUNDS = {"rounds": 6, "clients_per_round": 3, "separation": 3, "max_participations": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Changelogs of a few authors."""
    root = tmp_path_factory.mktemp("doc")
    entries = "".join(
        f"tool ({i}) x; y\n\n  * the same words again and again, {i} times.\n\n -- Author {i:02} <a@b>  now\n"
        for i in range(AUTHORS)
    )
    (root / "tool").mkdir()
    (root / "tool" / "changelog.gz").write_bytes(gzip.compress(entries.encode()))
    return root


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    """A whole study: its record, its folder, and where outcomes were kept."""
    out = tmp_path_factory.mktemp("report")
    arguments = {
        "data": "changelogs",
        "directory": str(folder),
        "out": out,
        "jobs": 0,
        "command": "anechoic federate …",
        "epsilons": (8.0,),
        "seeds": 2,
        "rates": (0.5,),
        "rounds": ROUNDS,
        "checkpoints": out / "kept",
    }
    return federate(**arguments), out, arguments


def mechanisms(record):
    return [Mechanism.from_json(arm["mechanism"]["json"]) for arm in record["arms"] if arm["mechanism"]]


@pytest.mark.slow
def test_arms_share_all_but_the_correlation_of_the_noise(found):
    record = found[0]
    made = mechanisms(record)
    assert len(made) == 4
    assert len({(m.participation, m.clip_norm, m.expected_batch_size, m.unit, m.delta) for m in made}) == 1
    assert {m.unit for m in made} == {"client"}
    assert [round(m.epsilon(), 6) for m in made] == [8.0] * 4
    assert len({m.strategy.describe() for m in made}) == 4
    assert {len(arm["best"]["metrics"]) for arm in record["arms"]} == {2}
    assert {len(arm["rates"]) for arm in record["arms"]} == {1}


@pytest.mark.slow
def test_delta_is_below_one_in_the_number_of_clients(found):
    record = found[0]
    clients = AUTHORS - AUTHORS // 10  # every tenth author is held out
    assert f"{clients} authors as clients" in record["task"]["description"]
    assert record["delta"] == clients**-1.1
    assert {m.delta for m in mechanisms(record)} == {clients**-1.1}


@pytest.mark.slow
def test_the_ledger_saw_what_was_promised(found):
    ledger = found[0]["ledger"]
    assert ledger["runs"] == 5 * 3
    assert 1 <= ledger["most"] <= ROUNDS["max_participations"]
    assert ledger["nearest"] is None or ledger["nearest"] >= ROUNDS["separation"]


def test_the_record_is_written_and_its_table_has_every_kind_of_noise(found):
    record, out, _ = found
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(record))
    head, (row,) = results(record)
    assert (
        "BLT − tree" in head and row[:3] == ["cool-down", "client", "8"] and row[-1] == "8"
    )  # one rate: no choice
    assert all("±" in cell for cell in row[3:-1])
    assert "outside the guarantee" in " ".join(lines(record))


def test_comparisons_are_paired_by_seed(found):
    record = found[0]
    arms = {(arm["kind"], arm["epsilon"]): arm["best"]["metrics"] for arm in record["arms"]}
    row = next(
        r for r in record["comparisons"] if (r["kind"], r["base"], r["epsilon"]) == ("blt", "tree", 8.0)
    )
    assert row["mean"] == pytest.approx(np.mean(np.subtract(arms["blt", 8.0], arms["tree", 8.0])))


@pytest.mark.slow
def test_finished_runs_are_not_made_again(found, monkeypatch, tmp_path):
    record, _, arguments = found
    with pytest.raises(CheckpointError, match="--resume"):
        federate(**arguments)
    monkeypatch.setattr("studies.federated.running.server_of", None)  # nothing can run
    again = federate(**arguments | {"resume": True, "out": tmp_path})
    assert again["arms"] == record["arms"]


def outcome(arm, rate, seed, metric):
    return Outcome(arm.name, rate, seed, metric, 1.0)


@pytest.mark.slow
def test_the_rate_is_chosen_on_a_seed_that_is_not_reported(folder):
    study = federated_study(ChangelogAuthors(str(folder), rounds=small()), epsilons=(8.0,), seeds=2)
    assert TUNING_SEED not in study.seeds
    assert {run.seed for run in study.runs()} == {TUNING_SEED}
    arm = study.arms[0]
    low, middle, high = study.rates[arm.name]
    tried = [outcome(arm, low, 0, 0.1), outcome(arm, middle, 0, 0.2), outcome(arm, high, 0, 0.3)]
    rest = [
        outcome(a, rate, 0, -abs(i - 1)) for a in study.arms[1:] for i, rate in enumerate(study.rates[a.name])
    ]
    (more,) = study.beyond(tried + rest)
    assert (more.arm, more.learning_rate, more.seed) == (arm, 2 * high, TUNING_SEED)
    final = study.final(tried + rest)
    assert {(run.learning_rate, run.seed) for run in final if run.arm == arm} == {(high, 1), (high, 2)}
    top = study.figures(arm, [*tried, outcome(arm, high, 1, 0.5), outcome(arm, high, 2, 0.7)])
    assert (top.learning_rate, top.mean, top.metrics, top.edge) == (high, 0.6, (0.5, 0.7), "highest")


def small():
    return Rounds(**ROUNDS, local_steps=2, local_rate=1.0, clip_norm=0.4)


def test_rounds_that_the_population_cannot_fill_are_refused(folder):
    many = Rounds(60, 20, 3, 2, 2, 1.0, 0.4)
    with pytest.raises(ValueError, match="1,?200"):
        federated_study(ChangelogAuthors(str(folder), rounds=many), epsilons=(8.0,))


@pytest.mark.parametrize(
    ("separation", "most", "words"),
    [
        (1000, 4, "a client rests for 1000 rounds and takes part at most 1 time."),
        (20, 4, "at most 3 times."),
        (1, 4, "rests for 1 round and takes part at most 4 times."),
    ],
)
def test_participations_are_those_that_the_run_has_room_for(separation, most, words):
    plan = {"rounds": 48, "separation": separation, "max_participations": most}
    task = task_of("docstrings", None, quick=True, clients=None, rounds=plan)
    assert in_words(task.rounds).endswith(words)


def test_sections_of_docstrings_are_clients(tmp_path):
    text = "The words of module {}, of which there are a few more than forty."
    for module in range(10):
        (tmp_path / f"module{module}.py").write_text(f'"{text.format(module)}"\ndef f(): "{module}"\n')
    task = task_of("docstrings", str(tmp_path), quick=False, clients=None, rounds={"rounds": 3})
    data, places = load(task), len(text.format(0)) - 3
    assert (data.clients, data.examples) == (9, 9 * places), "one is held out; the short ones take no part"
    assert "9 sections" in task.describe(data) and task.rounds.rounds == 3
    assert data.test_labels.size == places


@pytest.mark.parametrize(
    ("data", "directory", "clients", "words"),
    [
        ("fashion-mnist", None, None, "--data-dir"),
        ("changelogs", None, 500, "--clients 500"),
        ("docstrings", None, 500, "clients of the docstrings are their sections"),
    ],
)
def test_options_that_the_data_do_not_have_are_refused(data, directory, clients, words):
    with pytest.raises(ValueError, match=words):
        task_of(data, directory, quick=False, clients=clients, rounds={})
