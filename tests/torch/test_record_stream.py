"""Records that come once, in order: bounded by owner, resumed, refused where a promise differs."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

import anechoic as an
from anechoic.errors import DesynchronizedError, MismatchError, ReplayError, UnsupportedError
from anechoic.participation import MinSep, Single
from anechoic.torch import PrivacyEngine, RecordStream
from tests.torch.setting import private as made_private

B, STEPS = 6, 10
OWN = torch.Generator()


class Feed(IterableDataset):
    """Records (owner, x, y); of `gone` x and y are zero, so that a linear model has no gradient."""

    def __init__(self, rows=B * STEPS, owners=9, gone=None, draw=torch.zeros):
        rng = np.random.default_rng(0)
        self.owners, self.draw = rng.integers(owners, size=rows).tolist(), draw
        self.x = torch.tensor(rng.standard_normal((rows, 3)))
        self.y = torch.full((rows,), 9.0, dtype=torch.float64)
        for i, owner in enumerate(self.owners):
            if owner == gone:
                self.x[i], self.y[i] = 0.0, 0.0

    def __iter__(self):
        return zip(self.owners, self.x + self.draw(3), self.y, strict=True)


def stream_of(feed, rule=None, steps=STEPS):
    owner, record = (lambda one: one[0]), (lambda one: one[1:])
    return RecordStream(
        feed, batch_size=B, steps=steps, participation=rule or MinSep(3, 2), owner=owner, record=record
    )


def private(stream, engine=None, promise=None, **given):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    sampling = an.sampling.External(promise or stream.participation, B, stream.steps)
    identity = an.strategies.Identity(stream.steps)
    mechanism = an.calibrate(identity, sampling=sampling, noise_multiplier=1e-7, delta=1e-5, unit="user")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(stream, batch_size=B, **given)
    return made_private(
        engine, model=model, optimizer=optimizer, loader=loader, mechanism=mechanism, max_grad_norm=1.0
    )


def released(model, optimizer, loader, most=10**9):
    found = []
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()
        optimizer.step()
        found.append(torch.cat([p.grad.reshape(-1) for p in optimizer.params]).clone() * B)
        if len(found) == most:
            break
    return torch.stack(found)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_each_owner_keeps_to_the_promise_and_moves_nobody_else(owners, batch_size, apart):
    rule = MinSep(apart, 2)

    def used(ids):
        given = {"batch_size": batch_size, "steps": 8, "participation": rule, "owner": lambda one: one}
        stream, found = RecordStream(ids, **given), []
        for step in range(8):
            places = stream.used_in(step)
            found += [(step, int(i)) for i in (places if places is not None else [])]
        return found

    whole = used(owners)
    assert len(whole) == len({i for _, i in whole}) and all(i // batch_size == step for step, i in whole)
    for owner in set(owners):
        steps = [step for step, i in whole if owners[i] == owner]
        assert len(steps) <= 2 and all(b - a >= apart for a, b in pairwise(steps))
        others = [pair for pair in whole if owners[pair[1]] != owner]
        replaced = [f"other {i}" if one == owner else one for i, one in enumerate(owners)]
        assert [pair for pair in used(replaced) if owners[pair[1]] != owner] == others


def test_one_owner_moves_each_sum_by_one_clip_norm_and_as_often_as_promised():
    whole, moved = released(*private(stream_of(Feed()))), []
    for owner in range(0, 9, 2):
        moved.append((whole - released(*private(stream_of(Feed(gone=owner))))).norm(dim=1))
        assert int((moved[-1] > 1e-3).sum()) <= 2
    assert 0.9 < float(torch.stack(moved).max()) <= 1 + 1e-4
    stream = stream_of(Feed())
    assert released(*private(stream)).shape[0] == STEPS and stream.left_out > 10


def test_a_stream_that_ends_ends_the_pass_and_a_batch_may_be_empty():
    short = stream_of(Feed(rows=B * 4 + 2), steps=STEPS)
    assert len(released(*private(short))) == 5
    one = stream_of(Feed(owners=1), rule=Single())
    sums = released(*private(one))
    assert len(sums) == STEPS and float(sums[1:].norm()) < 1e-3 < float(sums[0].norm())


@pytest.mark.parametrize("draw", [torch.zeros, torch.randn])
def test_a_resumed_run_goes_on_with_the_records_that_are_due(draw, tmp_path):
    whole = released(*private(stream_of(Feed(draw=draw))))
    engine, again = PrivacyEngine(), PrivacyEngine()
    model, optimizer, loader = private(stream_of(Feed(draw=draw)), engine)
    released(model, optimizer, loader, most=4)
    engine.save_checkpoint(path=tmp_path / "run.ckpt", module=model, optimizer=optimizer)
    model, optimizer, loader = private(stream_of(Feed(draw=draw)), again)
    torch.manual_seed(6)  # where another process stands
    again.load_checkpoint(path=tmp_path / "run.ckpt", module=model, optimizer=optimizer)
    torch.testing.assert_close(released(model, optimizer, loader), whole[4:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stream", "given", "error", "words"),
    [
        (lambda: Feed(), {}, UnsupportedError, "RecordStream"),
        (lambda: stream_of(Feed()), {"num_workers": 1}, MismatchError, "num_workers is 1"),
        (lambda: stream_of(Feed()), {"promise": MinSep(2, 2)}, MismatchError, "participation is MinSep"),
        (
            lambda: RecordStream([], batch_size=2, steps=2, participation=Single(), owner=None),
            {},
            ValueError,
            "no record",
        ),
        (lambda: stream_of(Feed(), steps=0), {}, ValueError, "steps=0"),
        (
            lambda: stream_of(Feed(draw=partial(torch.rand, generator=OWN))),
            {},
            ValueError,
            "begins otherwise",
        ),
    ],
)
def test_what_is_refused(stream, given, error, words):
    with pytest.raises(error, match=words):
        made = stream()
        made.steps, made.participation = STEPS, getattr(made, "participation", MinSep(3, 2))
        private(made, **given)


@pytest.mark.parametrize("odd", [None, float("nan"), np.float64("nan"), 1.0, True, (1, 2), torch.tensor(1.5)])
def test_an_id_that_cannot_be_compared_is_refused(odd):
    stream = RecordStream([1, odd], batch_size=2, steps=1, participation=Single(), owner=lambda one: one)
    with pytest.raises(ValueError, match="unit id of type"):
        stream.used_in(0)


@pytest.mark.parametrize("same", [[torch.tensor(3), 3, np.int64(3)], ["a", np.str_("a"), "a"]])
def test_ids_that_are_the_same_are_one_owner(same):
    stream = RecordStream(same, batch_size=1, steps=3, participation=Single(), owner=lambda one: one)
    assert [len(stream.used_in(t)) for t in range(3)] == [1, 0, 0]


class Failing:
    """Records 0, 1, … of owners of their own; the third reading fails at record `at`."""

    def __init__(self, at, others=0):
        self.at, self.others, self.readings = at, others, 0

    def __iter__(self):
        self.readings += 1
        for i in range(12):
            if i == self.at and self.readings == 3:
                raise ConnectionError("gone for a moment")
            yield i + self.others * (self.readings > 3)


@pytest.mark.parametrize("at", [4, 5, 11])
def test_after_an_error_in_reading_the_same_records_are_due(at):
    given = {"batch_size": 4, "steps": 3, "participation": Single(), "owner": lambda one: one}
    whole = [RecordStream(Failing(99), **given).used_in(t).tolist() for t in range(3)]
    stream, found = RecordStream(Failing(at), **given), []
    for t in range(3):
        try:
            found.append(stream.used_in(t).tolist())
        except ConnectionError:
            found.append(stream.used_in(t).tolist())
    assert found == whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    stream = RecordStream(Failing(at, others=12), **given)
    with pytest.raises(ConnectionError):
        stream.used_in(2)
    with pytest.raises(DesynchronizedError, match="up to step 0 are not those that were read before"):
        stream.used_in(2)


@pytest.mark.parametrize("given", [iter([1, 2]), (i for i in range(3))])
def test_what_can_be_read_once_is_refused(given):
    with pytest.raises(ValueError, match="it is a generator"):
        RecordStream(given, batch_size=1, steps=2, participation=Single(), owner=None)


@pytest.mark.parametrize("owner", [lambda one: one[0], None])
def test_a_run_is_not_resumed_with_other_records(tmp_path, owner):
    def engine_with(feed):
        given = {"batch_size": B, "steps": STEPS, "participation": MinSep(3, 2) if owner else Single()}
        return RecordStream(feed, owner=owner, record=lambda one: one[1:], **given)

    model, optimizer, loader = private(engine_with(Feed()), engine := PrivacyEngine())
    released(model, optimizer, loader, most=4)
    engine.save_checkpoint(path=tmp_path / "run.ckpt", module=model, optimizer=optimizer)
    for change in ("turned", "none"):
        feed = Feed()
        if change == "turned":
            feed.owners[0:2], feed.x[0:2] = feed.owners[1::-1], feed.x[0:2].flip(0)
        model, optimizer, loader = private(engine_with(feed), again := PrivacyEngine())
        if change == "turned":
            with pytest.raises(ReplayError, match="batches under the keys"):
                again.load_checkpoint(path=tmp_path / "run.ckpt", module=model, optimizer=optimizer)
        else:
            again.load_checkpoint(path=tmp_path / "run.ckpt", module=model, optimizer=optimizer)
