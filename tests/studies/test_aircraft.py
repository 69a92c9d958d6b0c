import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from anechoic.mechanism.mechanism import Mechanism  # noqa: E402
from anechoic.sampling import External  # noqa: E402
from studies import training  # noqa: E402
from studies.aircraft import aircraft_study, group_delta, sampled_study  # noqa: E402
from studies.bounding import ContributionBound, participation_of  # noqa: E402
from studies.comparison.runner import run_study  # noqa: E402
from studies.comparison.study import Arm, TrainingRun, load  # noqa: E402
from studies.comparison.task import Flights  # noqa: E402
from studies.owners import owner_lines  # noqa: E402
from studies.tasks import BoundedFlights, SampledFlights, used  # noqa: E402

SMALL = {"examples": 5_120, "epsilons": (2.0,), "rates": (0.5,), "seeds": 1}


@pytest.fixture(scope="module")
def study():
    return aircraft_study(**SMALL)


@pytest.mark.slow
def test_mechanisms_say_what_they_protect_and_promise_what_the_batches_keep(study):
    found, facts = study
    private = [arm for arm in found.arms if arm.private]
    assert [arm.unit for arm in private] == ["example", "example", "aircraft", "aircraft"]
    rows, batches = used(found.task, load(found.task))
    owners = load(found.task).owners[rows]
    for arm in private[2:]:
        mechanism = Mechanism.from_json(arm.mechanism)
        assert mechanism.unit == "aircraft" and mechanism.epsilon() <= 2.0
        assert mechanism.sampling == External(
            participation_of(batches, owners), facts["batch_size"], 20, len(rows)
        )
        assert "Privacy unit:     one aircraft" in mechanism.report()
    assert facts["used"] == len(rows) == sum(map(len, batches)) < facts["examples"] == 5_120
    assert facts["count"] == len(np.unique(load(found.task).owners))


@pytest.mark.slow
def test_the_flights_of_one_aircraft_are_averaged_and_clipped_together(monkeypatch):
    task = BoundedFlights(examples=2_560, batch_size=128, bound=ContributionBound(3, 4))
    data = load(task)
    rows, batches = used(task, data)
    owners = data.owners[rows]
    divisor = round(np.mean([len(set(owners[batch].tolist())) for batch in batches]))
    weights, scores = torch.zeros(2, 46), []
    for t, batch in enumerate(batches):
        scores.append(data.features[t * 128 : (t + 1) * 128] @ weights.T)
        total = torch.zeros(2, 46)
        for owner in set(owners[batch].tolist()):
            mine = rows[[i for i in batch if owners[i] == owner]]
            x, y = data.features[mine], data.labels[mine]
            residual = torch.softmax(x @ weights.T, 1) - torch.nn.functional.one_hot(y, 2)
            gradient = residual.T @ x / len(mine)
            total += gradient * min(1.0, 1.0 / float(gradient.norm()))
        weights -= 0.5 * total / divisor
    seen = {}
    monkeypatch.setattr(
        Flights,
        "score",
        lambda self, model, data, logits, labels: seen.update(model=model, logits=logits) or 0.5,
    )
    outcome = training.execute(TrainingRun(task, Arm("clipped", "fixed", 1.0, unit="aircraft"), 0.5, 7, 20))
    assert outcome.epsilon is None
    torch.testing.assert_close(next(seen["model"].parameters()).detach(), weights, atol=2e-5, rtol=1e-4)
    # every flight is scored, before the step that trains on some of its window
    torch.testing.assert_close(torch.cat(seen["logits"]), torch.cat(scores), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_study_runs_is_written_and_says_what_a_flight_is_worth(study, tmp_path):
    found, facts = study
    about = {"title": "t", "command": "c", "out": tmp_path, "jobs": 0, "execute": training.execute}
    record = run_study(found, **about, facts=lambda outcomes: {"units": facts})
    assert record == json.loads((tmp_path / "results.json").read_text())
    assert [row["unit"] for row in record["comparisons"]] == ["example", "aircraft"]
    assert all(0.3 < arm["best"]["mean"] < 0.9 for arm in record["arms"])
    aircraft = [arm for arm in record["arms"] if arm["unit"] == "aircraft" and arm["epsilon"]]
    assert [arm["runs"][0]["epsilon"] <= 2.0 for arm in aircraft] == [True, True]
    shown = "\n".join(owner_lines(record))
    for said in (
        "noise std",
        "Group privacy would say",
        "for the aircraft that moves it most",
        "An aircraft",
    ):
        assert said in shown
    for row in facts["worth"]:
        assert row["worst"] > row["epsilon"] and row["worst"] >= row["median"]


@pytest.mark.slow
def test_sampled_aircraft():
    found, facts = sampled_study(
        examples=20_480, epsilons=(2.0,), rates=(0.5,), seeds=1, passes=1, strategy="identity"
    )
    assert isinstance(found.task, SampledFlights) and facts["bound"] is None
    data = load(found.task)
    assert len(data.labels) == 18_432 and len(data.test_labels) == 2_048
    arms = {arm.name: arm for arm in found.arms}
    mechanism = Mechanism.from_json(arms["planned-poisson-aircraft-eps2"].mechanism)
    assert mechanism.amplified and mechanism.unit == "aircraft"
    assert mechanism.sampling.examples == facts["count"] == len(np.unique(data.owners))
    for name in ("planned-poisson-eps2", "planned-poisson-aircraft-eps2", "clipped-fixed-aircraft"):
        outcome = training.execute(TrainingRun(found.task, arms[name], 0.5, 3, found.steps))
        assert 0.3 < outcome.metric < 0.9
        assert outcome.epsilon is None if "clipped" in name else outcome.epsilon <= 2.0


def test_group_privacy():
    assert group_delta(1, 0.5, 1e-6) == pytest.approx(1e-6)
    wanted = 1e-9 * sum(math.exp(0.5 * i) for i in range(4))  # one exchange after the other
    assert group_delta(4, 0.5, 1e-9) == pytest.approx(wanted)
    assert group_delta(500, 1.0, 1e-6) == 1.0
