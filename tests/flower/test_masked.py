"""Masked sums over Flower's messages: drop-outs at every stage, and what the server gets to see."""

import numpy as np
import pytest
from flwr.app import Message

from anechoic.federated.secure_sum import Stage
from anechoic.flower import ClippedUpdate
from anechoic.flower.grid import Fate, InProcessGrid
from anechoic.flower.records import digest_of_config, record_of
from anechoic.flower.rounds import fields_of
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
@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    app = small.client_app(mod=ClippedUpdate(masked_only=True, smallest_sum=2))
    assert small.run(small.strategy(masked=True), small.grid(app))[1].stopped is None
    models, found = small.run(small.strategy(), small.grid(app), rounds=1)
    assert found.report().refused  # everybody answered with a refusal, which counts as zero
    assert len(models) == 1


def test_a_client_may_ask_for_more_company():
    app = small.client_app(mod=ClippedUpdate(smallest_sum=4))
    _, found = small.run(small.strategy(masked=True), small.grid(app))
    assert found.stopped is not None and found.report().released == 0


def changed_model(content):
    changed = small.initial()
    changed["w"] = changed["w"] + 1
    content["arrays"] = record_of(changed)


def changed_config(content):
    """A rate of 0 makes all updates but the victim's zero: the exact sum would be the victim's."""
    content["config"] = small.ConfigRecord({**content["config"], "lr": 0.0})


def without_rate(content):
    content["config"] = small.ConfigRecord(
        {name: value for name, value in content["config"].items() if name != "lr"}
    )


@pytest.mark.parametrize("change", [changed_model, changed_config, without_rate])
def test_another_model_or_configuration_than_announced_is_refused(change):
    """One client is sent something else than the others, and gives no update."""

    class Swapping(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages[:1]:
                if stage_of(message) is Stage.MASKED:
                    change(message.content)
            return super().push_messages(messages)

    _, found = small.run(
        strategy(),
        Swapping(small.client_app(), small.CLIENTS),
        rounds=2,
        train_config=small.ConfigRecord({"lr": np.float64(0.25)}),
    )
    assert found.report().replies == 2 * (MANY - 1)


def test_clients_that_are_told_of_different_configurations_share_no_masks():
    """A server that announces to each client what it will send to it: no two of them can open a share."""

    class Consistent(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages[:1]:
                if stage_of(message) is not None:
                    config = {"server-round": 1, "lr": 0.0}
                    ask = {**message.content["anechoic"], "config": digest_of_config(config)}
                    message.content["anechoic"] = small.ConfigRecord(ask)
                    if "config" in message.content:
                        message.content["config"] = small.ConfigRecord(config)
            return super().push_messages(messages)

    found = strategy()
    small.run(found, Consistent(small.client_app(), small.CLIENTS), rounds=1)
    assert found.report().released == 0 and found.server._standing.tally.sums == 0


@pytest.mark.parametrize("smallest", [2, 10])
@pytest.mark.slow
def test_no_sum_of_a_few_is_made_after_a_restart(tmp_path, smallest):
    """Thirty were asked and charged, the server was killed, and two are back."""
    options = {"smallest_sum": smallest, "min_available": 1, "state": tmp_path / "state", "key": None}
    options |= {"clients_per_round": 30, "discipline": small.CoolDown(2)}
    app = small.client_app(mod=ClippedUpdate(smallest_sum=smallest))
    first = small.strategy(masked=True, **options)
    grid = InProcessGrid(app, 60)
    assert len(list(first.configure_train(1, record_of(small.initial()), small.ConfigRecord(), grid))) == 30
    asked = set(first._round.asked.clients)
    first.close()
    back = set(sorted(asked)[:2])
    grid.online = lambda place: place in back
    second = small.strategy(masked=True, **options)
    models, _ = small.run(second, grid)
    assert models == [] and second.server._standing.tally.sums == 0
    grid.online = lambda place: place not in asked or place in back
    models, _ = small.run(second, grid, rounds=1)
    assert len(models) == 1, "with the others there it goes on"
    second.close()


def test_one_client_that_lies_is_left_out_of_the_next_attempt():
    def lying(message, context, call_next):
        reply = small.FEW_MOD(message, context, call_next)
        if context.node_config["partition-id"] == 4 and stage_of(message) is Stage.SHARES:
            reply.content["masked"]["seed_commitment"] = bytes(16)
        return reply

    app = small.client_app(mods=[lying])
    found = strategy(clients_per_round=small.CLIENTS, min_available=6, patience=30.0)
    models, _ = small.run(found, InProcessGrid(app, small.CLIENTS), rounds=1)
    assert len(models) == 1 and found.report().short >= 1 and found.stopped is None


def test_a_stage_is_closed_when_it_has_enough():
    """Of eight that are asked six are needed: two may be silent, and nobody waits for them."""
    asked_of, silent = [], {1, 2}

    def fates(message, place):
        asked_of.append((stage_of(message), place))
        return Fate.LOST if stage_of(message) is not None and place in silent else Fate.ANSWERED

    found = strategy(over_selection=0.3, discipline=small.CoolDown(1), patience=10.0)
    models, _ = small.run(found, InProcessGrid(small.client_app(), 8, fate=fates), rounds=2)
    assert len(models) == 2 and found.report().replies == 2 * MANY
    assert sum(stage is Stage.KEYS for stage, _ in asked_of) == 2 * 8
    assert sum(stage is Stage.UNMASKING for stage, _ in asked_of) == 2 * MANY
