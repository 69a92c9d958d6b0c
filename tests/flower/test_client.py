"""Clipped updates from any library's arrays, and what the mod lets leave."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from anechoic.federated import to_grid
from anechoic.flower import ClippedUpdate, Labels, clipped_update
from anechoic.flower.client import as_arrays
from anechoic.flower.records import record_of, vector_of
from tests.flower import small
from tests.flower.in_process import InProcessGrid


class Jaxlike:
    """An array of a library that NumPy knows nothing of, but how to make one of its own from it."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


BEFORE = {"w": np.ones((2, 3), np.float32), "scale": np.float32(1.0), "steps": np.int64(3)}
AFTER = {"w": np.full((2, 3), 4.0, np.float32), "scale": np.float32(-1.0), "steps": np.int64(4)}
EXPECTED = to_grid([3.0] * 6 + [-2.0], clip_norm=2.0, grid_bits=20)


@pytest.mark.parametrize(
    "library",
    [np.asarray, lambda array: torch.tensor(array, requires_grad=array.dtype.kind == "f"), Jaxlike],
    ids=["numpy", "torch", "jax-like"],
)
def test_arrays_of_any_library(library):
    before, after = ({name: library(array) for name, array in given.items()} for given in (BEFORE, AFTER))
    found = clipped_update(before, after, clip_norm=2.0, grid_bits=20, exclude=["steps"])
    np.testing.assert_array_equal(found, EXPECTED)


def test_one_clip_over_all_arrays_with_a_scalar_among_them():
    found = clipped_update(BEFORE, AFTER, clip_norm=2.0, grid_bits=20, exclude=["steps"])
    norm = float(np.sqrt(sum(int(entry) ** 2 for entry in found))) / 2**20
    assert 0.9999 < norm <= 1.0
    assert found[-1] < -(2**17)  # the 0-d array is clipped with the rest, not left as it was


def test_another_floating_type_is_taken_and_what_is_not_finite_is_zero():
    for w, expected in ((AFTER["w"].astype(np.float64), EXPECTED), (AFTER["w"] * np.nan, np.zeros(7))):
        found = clipped_update(BEFORE, {**AFTER, "w": w}, clip_norm=2.0, grid_bits=20, exclude=["steps"])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("after", "exclude", "what"),
    [
        ({"w": AFTER["w"]}, ["steps"], "missing"),
        ({**AFTER, "w": np.ones(6, np.float32)}, ["steps"], "shape"),
        ({**AFTER, "more": np.ones(1)}, ["steps"], "names"),
        (AFTER, [], "steps"),
    ],
)
def test_refuses_what_is_no_model(after, exclude, what):
    with pytest.raises(ValueError, match=what):
        clipped_update(BEFORE, after, clip_norm=1.0, grid_bits=20, exclude=exclude)


def test_a_list_of_arrays_is_named_as_flower_does():
    arrays = [np.zeros(2), np.ones(3)]
    assert list(as_arrays(arrays)) == list(ArrayRecord(arrays)) == ["0", "1"]
    with pytest.raises(TypeError, match="mapping"):
        as_arrays(3)


# -- the mod ---------------------------------------------------------------------------------------


def ask(app, nodes=1, kind="train", **asked):
    """One message of a server to each node of an app; the replies."""
    grid = InProcessGrid(app, nodes)
    settings = {"stage": "train", "clip_norm": small.CLIP, "grid_bits": 24, "exclude": ["seen"], **asked}
    content = RecordDict(
        {
            "arrays": record_of(small.initial()),
            "config": ConfigRecord({"server-round": 1}),
            "anechoic": ConfigRecord(settings),
        }
    )
    return list(grid.send_and_receive([Message(content, node, kind) for node in grid.get_node_ids()]))


def test_the_mod_answers_with_the_update_of_the_function():
    for node, reply in enumerate(ask(small.client_app(), 3)):
        expected = small.vector(small.initial(), node, 1, 24)
        np.testing.assert_array_equal(vector_of(reply.content), expected)


@pytest.mark.parametrize(
    ("mod", "asked", "what"),
    [
        (ClippedUpdate(largest_clip_norm=1.0), {}, "limit"),
        (ClippedUpdate(largest_clip_norm=1.0), {"clip_norm": "1"}, "limit"),
        (ClippedUpdate(), {"stage": "another"}, "stage"),
        (ClippedUpdate(), {"grid_bits": 63}, "failed"),
        (ClippedUpdate(), {"grid_bits": True}, "failed"),
        (ClippedUpdate(), {"clip_norm": -1.0}, "failed"),
        (ClippedUpdate(), {"clip_norm": float("nan")}, "failed"),
        (ClippedUpdate(), {"exclude": []}, "failed"),
        (ClippedUpdate(identity=None), {"stage": "who", "key": "partition-id"}, "who"),
        (ClippedUpdate(), {"stage": "who", "key": "secret"}, "who"),
    ],
)
def test_what_a_server_may_not_ask(mod, asked, what):
    [reply] = ask(small.client_app(mod=mod), **asked)
    assert reply.has_error() and what in reply.error.reason


def test_other_messages_pass():
    app = small.client_app()

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"seen": ConfigRecord()}), reply_to=message)

    [reply] = ask(app, kind="evaluate")
    assert list(reply.content) == ["seen"]


def test_a_node_that_may_change_hands_keeps_no_state_of_a_user(caplog):
    seen = []

    def training(message, context):
        seen.append(sorted(context.state))
        context.state["momentum"] = ConfigRecord({"of": 1})
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(small.client_app(training), 1)
    options = {"policy": small.MinSeparation(1), "min_available": 1}
    small.run(small.strategy(identity=Labels(lambda node: "ann"), **options), grid, rounds=2)
    assert seen == [[], []]
    thrown = [record.message for record in caplog.records if "thrown away" in record.message]
    assert len(thrown) == 2 and all("(momentum)" in message for message in thrown)
    seen.clear()
    small.run(small.strategy(**options), grid, rounds=2)
    assert seen == [[], ["momentum"]], "a node that is its client keeps what is its own"


def test_the_mod_refuses():
    with pytest.raises(ValueError, match="largest_clip_norm"):
        ClippedUpdate(largest_clip_norm=0.0)
