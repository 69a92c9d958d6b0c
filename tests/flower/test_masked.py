"""Masked sums over Flower's messages: drop-outs at every stage, and what the server gets to see."""

import numpy as np
import pytest
from flwr.app import Message

from anechoic.federated.secure_sum import Stage
from anechoic.flower import ClippedUpdate, Fate, InProcessGrid
from anechoic.flower.masked import fields_of
from anechoic.flower.records import record_of
from tests.flower import small

MANY = 6  # clients a round, of whom five must answer every stage


def strategy(**options):
    found = {"clients_per_round": MANY, "discipline": small.CoolDown(2), **options}
    return small.strategy(masked=True, **found)


def stage_of(message):
    found = fields_of(message.content)
    return None if found is None else Stage(found["stage"])


def run_with(fate, **options):
    grid = InProcessGrid(small.client_app(), small.CLIENTS, fate=fate)
    return small.run(strategy(**options), grid)


@pytest.mark.parametrize("stage", [*list(Stage)[:3], Stage.UNMASKING], ids=str)
@pytest.mark.parametrize("fate", [Fate.LOST, Fate.FAILED, Fate.LATE])
def test_a_drop_out_at_any_stage_is_recovered(stage, fate):
    """From its stage on one client is silent; its update is in the sum only if it was sent before."""

    def fates(message, place):
        own = stage_of(message)
        return fate if place == 4 and own is not None and own >= stage else Fate.ANSWERED

    models, found = run_with(fates)
    discipline = small.CoolDown(2)
    expected = small.models_without_flower(
        answers=lambda client, step: client != 4 or stage > Stage.MASKED,
        mechanism=small.mechanism(discipline=discipline, per_round=MANY),
        discipline=discipline,
        clients_per_round=MANY,
        min_replies=2,
    )
    small.same(models, expected)
    assert found.report().short == 0


@pytest.mark.parametrize("stage", [*list(Stage)[:3], Stage.UNMASKING], ids=str)
def test_too_many_drop_outs_release_nothing(stage):
    def fates(message, place):
        return Fate.LOST if place % 2 and stage_of(message) == stage else Fate.ANSWERED

    models, found = run_with(fates)
    report = found.report()
    assert report.short > 0 and report.released == len(models)
    assert found.stopped is not None


def test_the_server_sees_no_update():
    """What comes in of one client is as random as its masks: it is never the update, nor near it."""
    seen = []

    class Watched(InProcessGrid):
        def pull_messages(self, message_ids):
            found = list(super().pull_messages(message_ids))
            seen.extend(fields_of(reply.content) for reply in found if reply.has_content())
            return found

    small.run(strategy(), Watched(small.client_app(), small.CLIENTS))
    masked = [found["vector"] for found in seen if found and "vector" in found]
    assert len(masked) == MANY * small.ROUNDS
    words = np.concatenate([np.frombuffer(data, np.uint32) for data in masked])
    assert words.size == 7 * MANY * small.ROUNDS
    assert 0.35 < (words / 2**32).mean() < 0.65 and (words > 2**26).mean() > 0.9


def test_a_client_whose_training_fails_adds_zeros():
    def training(message, context):
        if context.node_config["partition-id"] == 4:
            raise RuntimeError("no data")
        arrays = small.arrays_of(message.content["arrays"])
        new = small.trained(
            arrays, context.node_config["partition-id"], message.content["config"]["server-round"]
        )
        return Message(small.RecordDict({"arrays": record_of(new)}), reply_to=message)

    discipline = small.CoolDown(2)
    models, _ = small.run(strategy(), InProcessGrid(small.client_app(training), small.CLIENTS))
    expected = small.models_without_flower(
        answers=lambda client, step: client != 4,
        mechanism=small.mechanism(discipline=discipline, per_round=MANY),
        discipline=discipline,
        clients_per_round=MANY,
        min_replies=2,
    )
    small.same(models, expected)


def test_a_client_may_insist_on_masks():
    app = small.client_app(mod=ClippedUpdate(masked_only=True))
    assert small.run(small.strategy(masked=True), small.grid(app))[1].stopped is None
    models, found = small.run(small.strategy(), small.grid(app), rounds=1)
    assert found.report().refused  # everybody answered with a refusal, which counts as zero
    assert len(models) == 1


def test_a_client_may_ask_for_more_company():
    app = small.client_app(mod=ClippedUpdate(smallest_threshold=4))
    _, found = small.run(small.strategy(masked=True), small.grid(app))
    assert found.stopped is not None and found.report().released == 0


def test_another_model_than_announced_is_refused():
    """A server that sends a client a model of its own, to learn from the sum, gets no update of it."""

    class Swapping(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages[:1]:
                if stage_of(message) is Stage.MASKED:
                    changed = small.initial()
                    changed["w"] = changed["w"] + 1
                    message.content["arrays"] = record_of(changed)
            return super().push_messages(messages)

    _, found = small.run(strategy(), Swapping(small.client_app(), small.CLIENTS), rounds=2)
    assert found.report().replies == 2 * (MANY - 1)
