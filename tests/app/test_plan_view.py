"""The planner page without a browser: what a question asks, what is answered, and who computes it."""

import asyncio
import json
import socket

import numpy as np
import pytest

import anechoic as an
from anechoic.app.page import serve
from anechoic.app.plan_form import PlanForm, field_of, number
from anechoic.app.plan_view import kept_noise, parts
from anechoic.app.plan_worker import PlanWorker
from anechoic.errors import AnechoicError
from tests.floats import same_bits

SMALL = {"examples": "400", "batch_size": "50", "epochs": "2", "delta": "1e-4", "sampling": "fixed_order"}
TIME = {"order": "time", "min_sep": "3", "max_participations": "2", "dimension": "10", "memory_budget": "1kB"}
ADAM = {"optimizer": "adam", "schedule": "cosine", "dimension": ""}
AVERAGE = {"momentum": "", "schedule": "constant", "keep": "average"}


def asked(**fields):
    return PlanForm(**(SMALL | fields))


@pytest.mark.parametrize("fields", [{}, TIME, ADAM, AVERAGE], ids=["momentum", "time", "adam", "average"])
@pytest.mark.few(1)
def test_the_code_that_is_copied_makes_the_same_plan(fields, capsys):
    question = asked(**fields)
    known = {}
    exec(question.code(), known)  # as it is pasted
    own = an.plan(**question.arguments())
    assert str(known["plan"]) == str(own) and same_bits(
        known["plan"].mechanism.noise_std, own.mechanism.noise_std
    )
    assert capsys.readouterr().out.startswith(str(own)[:60])


def test_each_field_reaches_the_plan():
    given = asked(**TIME).arguments()
    assert given["participation"] == an.participation.MinSep(3, 2) and given["random_sampling"] is False
    assert given["epochs"] == 1 and "sampling" not in given and given["memory_budget"] == "1kB"
    given = asked(keep="all", batch_size="50 100", epochs="1 2").arguments()
    assert given["batch_size"] == [50, 100] and given["epochs"] == [1, 2] and given["keep"] == "all"
    assert given["optimizer"].momentum == pytest.approx(0.9) and given["scheduler"] == "cooldown"
    assert given["sampling"] == "fixed_order" and given["dimension"] == 1_000_000
    assert asked(**ADAM).arguments()["optimizer"] == "adam"


def test_numbers_as_they_are_typed():
    assert [number(text) for text in ("60000", "60,000", "6_0e3", " 2.50 ", "x", "", "-1")] == [
        60000, 60000, 60000, 2.5, "x", "", -1,
    ]  # fmt: skip
    assert isinstance(number("6e4"), int) and number("inf") == float("inf")


WRONG = [
    *(("examples", text, "integer") for text in ("abc", "", "1.5")),
    ("batch_size", "0", "at least 1"),
    ("batch_size", "401", "exceeds examples"),
    ("epochs", "", "epochs is empty"),
    ("epsilon", "-1", "> 0"),
    ("epsilon", "", "real number"),
    ("delta", "1", "strictly between"),
    ("momentum", "1", r"\[0, 1\)"),
    ("dimension", "0", "at least 1"),
    ("memory_budget", "2XB", "not a size"),
]


@pytest.mark.parametrize(("field", "text", "said"), WRONG)
def test_a_wrong_field_is_named_by_the_error(field, text, said):
    with pytest.raises((ValueError, AnechoicError), match=said) as caught:
        list(parts(asked(**{field: text})))
    assert field_of(caught.value) == field


def test_wrong_promises_and_errors_of_no_field():
    for field, text in (("min_sep", "0"), ("max_participations", "x")):
        with pytest.raises(ValueError) as caught:
            asked(**(TIME | {field: text})).arguments()
        assert field_of(caught.value) == field
    with pytest.raises(ValueError, match="max_participations=2 needs min_sep") as caught:
        asked(**(TIME | {"min_sep": ""})).arguments()
    assert field_of(caught.value) == "max_participations"
    assert field_of(ValueError("no such strategy")) == field_of(ValueError("workload=3 is odd")) == ""


@pytest.mark.parametrize("keep", ["last", "average"])
def test_noise_in_the_kept_model_by_brute_force(keep):
    found = an.plan(**asked(keep=keep, momentum="0.5").arguments())
    mechanism, row = found.mechanism, found.chosen
    workload, inverse = row.objective.workload.to_dense(), np.linalg.inv(mechanism.strategy.to_dense())
    noise = np.linalg.norm(workload @ inverse, axis=1) * mechanism.noise_std / row.batch_size
    n = mechanism.steps
    wanted = noise[-1] if keep == "last" else np.sqrt(np.mean(noise[n // 2 :] ** 2))
    assert kept_noise(found) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_the_answer_has_what_the_page_shows():
    pytest.importorskip("matplotlib")
    question = asked()
    known = dict(parts(question))
    plan = an.plan(**question.arguments())
    assert {*["facts", "table", "pictures", "code", "mechanism", "statement.json", "done"]} <= known.keys()
    assert known["statement.txt"] == plan.mechanism.report("text")
    assert json.loads(known["statement.json"])["fingerprint"] in known["statement.txt"]
    made = an.Mechanism.from_json(known["mechanism"])
    assert same_bits(made.noise_std, plan.mechanism.noise_std)
    assert all(row.name in known["table"] for row in plan.rows)
    assert known["pictures"].count("<img") == 2 and "one core" in known["facts"]


async def _answer(worker, question):
    return [part async for part in worker.ask(question)]


@pytest.mark.slow
def test_a_newer_question_ends_an_older_one():
    pytest.importorskip("matplotlib")

    async def story():
        worker, long = PlanWorker(), PlanForm(examples="2000000", batch_size="100 200 400", epochs="3")
        older = asyncio.create_task(_answer(worker, long))
        while not worker._busy:
            await asyncio.sleep(0.05)
        process = worker._process
        newer = await _answer(worker, asked())
        assert newer[-1][0] == "done" and not any(name == "facts" for name, _ in await older)
        process.join(10)
        assert not process.is_alive()
        wrong = await _answer(worker, asked(epsilon="-1"))
        assert wrong[-1][0] == "error epsilon" and "epsilon=-1" in wrong[-1][1]
        assert await _answer(worker, asked()) == newer

        again = asyncio.create_task(_answer(worker, long))
        while not worker._busy:
            await asyncio.sleep(0.05)
        worker.cancel()
        assert not any(name.startswith(("facts", "error")) for name, _ in await again)

        ended = asyncio.create_task(_answer(worker, long))
        while not worker._busy:
            await asyncio.sleep(0.05)
        worker._process.kill()  # as the system does for want of memory
        assert "ended from outside" in (await ended)[-1][1]

    asyncio.run(story())


@pytest.mark.parametrize("port", [99999, -1, 0, None])
def test_a_port_that_cannot_be_listened_on_is_refused_before_an_address_is_printed(port, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = taken.getsockname()[1] if port is None else port
        with pytest.raises(ValueError, match=f"port={asked} cannot be listened on"):
            serve(asked)
    assert not capsys.readouterr().out
