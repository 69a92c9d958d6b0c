"""Clipped updates from any library's arrays, and what the mod lets leave."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from anechoic.federated import to_grid
from anechoic.flower import ClippedUpdate, Labels, at_most, clipped_update
from anechoic.flower.client import as_arrays
from anechoic.flower.grid import InProcessGrid
from anechoic.flower.records import record_of, vector_of
from tests.flower import small


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


def test_a_model_of_torch_with_batch_normalisation():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.randn(8, 3)).sum().backward()
    after = model.state_dict()
    buffers = [name for name in before if name.split(".")[-1] in ("running_mean", "running_var")]
    counters = [name for name in before if "num_batches" in name]
    with pytest.raises(ValueError, match="num_batches_tracked"):
        clipped_update(before, after, clip_norm=1.0, grid_bits=20, exclude=buffers)
    found = clipped_update(before, after, clip_norm=1.0, grid_bits=20, exclude=buffers + counters)
    np.testing.assert_array_equal(found, np.zeros(3 * 2 + 2 + 2 + 2))


def test_another_floating_type_is_taken():
    after = {**AFTER, "w": AFTER["w"].astype(np.float64)}
    found = clipped_update(BEFORE, after, clip_norm=2.0, grid_bits=20, exclude=["steps"])
    np.testing.assert_array_equal(found, EXPECTED)


def test_an_update_that_is_not_finite_is_zero():
    after = {**AFTER, "scale": np.float32(np.nan)}
    assert not clipped_update(BEFORE, after, clip_norm=1.0, grid_bits=20, exclude=["steps"]).any()


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


def test_at_most():
    rng = np.random.default_rng(3)
    assert at_most(range(5), 5) == range(5)
    found = at_most(range(100), 10, rng)
    assert len(set(found)) == 10 and set(found) <= set(range(100))
    with pytest.raises(ValueError, match="limit=0"):
        at_most([1], 0)


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
        (ClippedUpdate(masked_only=True), {}, "stage"),
        (ClippedUpdate(identity=None), {"stage": "who", "key": "partition-id"}, "who"),
        (ClippedUpdate(), {"stage": "who", "key": "secret"}, "who"),
    ],
)
def test_what_a_server_may_not_ask(mod, asked, what):
    [reply] = ask(small.client_app(mod=mod), **asked)
    assert reply.has_error() and what in reply.error.reason


@pytest.mark.parametrize(
    ("named", "asked", "leave"),
    [((), ["loss"], None), (("loss",), [], None), (("loss", "none"), ["loss", "age"], {"loss": 0.0})],
)
def test_a_number_leaves_only_if_both_name_it(named, asked, leave):
    [reply] = ask(small.client_app(mod=ClippedUpdate(metrics=named)), metrics=asked)
    found = reply.content.get("metrics")
    assert (None if found is None else dict(found)) == leave


def test_other_messages_pass():
    [reply] = ask(small.client_app(), kind="evaluate")
    assert dict(reply.content["metrics"])["accuracy"] == 0.5


def test_a_shared_node_keeps_no_state_of_a_user(caplog):
    seen = []

    def training(message, context):
        seen.append((message.content["config"].get("user"), sorted(context.state)))
        context.state["momentum"] = ConfigRecord({"of": 1})
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = InProcessGrid(small.client_app(training), 1)
    users = ["ann", "bob", "cy"]
    small.run(small.strategy(identity=Labels(lambda node: users)), grid, rounds=1)
    assert sorted(seen) == [(user, []) for user in users]
    thrown = [record.message for record in caplog.records if "thrown away" in record.message]
    assert len(thrown) == 3 and all("(momentum)" in message for message in thrown)
    caplog.clear()
    seen.clear()
    found = small.strategy(identity=Labels(lambda node: "ann"), discipline=small.CoolDown(1), min_available=1)
    small.run(found, grid, rounds=2)
    assert seen == [("ann", []), ("ann", [])]  # the device may be somebody else's tomorrow
    seen.clear()
    found = small.strategy(discipline=small.CoolDown(1), min_available=1)
    small.run(found, InProcessGrid(small.client_app(training), 1), rounds=2)
    assert seen == [(None, []), (None, ["momentum"])]
    assert caplog.text.count("thrown away") == 2  # in the two rounds before: this node keeps what is its own


@pytest.mark.parametrize("options", [{"metrics": "loss"}, {"largest_clip_norm": 0.0}, {"masked_only": "no"}])
def test_the_mod_refuses(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ClippedUpdate(**options)
