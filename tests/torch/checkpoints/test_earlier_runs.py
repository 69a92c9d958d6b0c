"""A framework's own checkpoint restores weights and optimizer, not keys and count: epsilon never forgets."""

import io

import pytest
import torch

import anechoic as an
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import Identity
from anechoic.torch.optimizer import unstamped
from tests.torch.setting import mechanism, network, start, step, train

DELTA = 1e-5


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)  # as frameworks read it


def framework_saves(run):
    """What a trainer writes: weights and the optimizer's state."""
    return through_a_file({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()})


def fresh(saved, **options):
    """A new process of the same script: a new engine, and the weights of the first."""
    run = start(keys=False, **options)
    run.model.load_state_dict(saved["model"])
    return run


@pytest.fixture(params=["fixed", "poisson"])
def mech(request):
    return mechanism(request.param, noise_std=1.5)


def test_a_stamp_holds_no_secret_and_binds_to_keys_and_count(mech):
    first = start(mech=mech)
    train(first, 5)
    early = framework_saves(first)
    stamp, keys = early["optimizer"]["anechoic"], first.engine._current().keys
    assert (stamp["releases"], stamp["fingerprint"]) == (5, mech.fingerprint)
    assert keys.noise.hex() not in repr(stamp) and keys.sampling.hex() not in repr(stamp)
    train(first, 9)
    late = framework_saves(first)
    first.optimizer.load_state_dict(early["optimizer"])  # its own, of an earlier step
    train(first, 12)
    same, other = start(mech=mech), fresh(late, mech=mech)
    for run, state, message in (
        (same, early, "would use rows of noise again"),  # under the same keys, at release 0
        (other, early, r"5 releases get_epsilon would forget.*engine\.charge\(state\)"),
        (other, late, "9 releases get_epsilon would forget"),
    ):
        with pytest.raises(ReplayError, match=message):
            run.optimizer.load_state_dict(state["optimizer"])
        run.engine.charge(early["optimizer"], releases=5)
        if state is early and run is other:
            run.optimizer.load_state_dict(state["optimizer"])
            continue
        with pytest.raises(ReplayError, match=message):
            run.optimizer.load_state_dict(state["optimizer"])
    other.engine.charge(late["optimizer"])  # the first process may have gone on after its last file
    assert other.engine.get_epsilon(DELTA) == pytest.approx(mech.epsilon(DELTA), rel=1e-6)
    assert other.engine.get_epsilon(DELTA) >= first.engine.get_epsilon(DELTA)


@pytest.mark.slow
def test_charged_releases_count(mech):
    first = start(mech=mech, keys=False)
    train(first, 8)
    saved = framework_saves(first)
    second = fresh(saved, mech=mech)
    second.engine.charge(saved["optimizer"], releases=8)
    second.optimizer.load_state_dict(saved["optimizer"])
    assert second.engine.get_epsilon(DELTA) >= first.engine.get_epsilon(DELTA) > 0
    train(second, 7)
    block = Mechanism(mech.strategy.truncate(8), mech.sampling.truncate(8), mech.noise_std)
    rest = Mechanism(mech.strategy.truncate(7), mech.sampling.truncate(7), mech.noise_std)
    assert second.engine.get_epsilon(DELTA) == pytest.approx(an.compose(block, rest).epsilon(DELTA), rel=1e-9)
    alone = max(first.engine.get_epsilon(DELTA), mech.epsilon(DELTA, steps=7))
    assert second.engine.get_epsilon(DELTA) > alone
    assert second.engine.composition.runs == 2


@pytest.mark.slow
def test_a_third_process_pays_for_both(mech, tmp_path):
    first = start(mech=mech, keys=False)
    train(first, 5)
    one = framework_saves(first)
    second = fresh(one, mech=mech)
    second.engine.charge(one["optimizer"], releases=5)
    second.optimizer.load_state_dict(one["optimizer"])
    train(second, 4)
    two = framework_saves(second)
    third = fresh(two, mech=mech)
    with pytest.raises(ReplayError, match="get_epsilon would forget"):
        third.optimizer.load_state_dict(two["optimizer"])
    third.engine.charge(two["optimizer"], releases=4)
    third.optimizer.load_state_dict(two["optimizer"])
    assert sorted(one.releases for one in third.engine._current().history.earlier) == [4, 5]
    # and its own checkpoint keeps them
    third.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    fourth = start(mech=mech, keys=False)
    fourth.engine.load_checkpoint(path=tmp_path / "run.ckpt")
    assert fourth.engine.get_epsilon(DELTA) == pytest.approx(third.engine.get_epsilon(DELTA), rel=1e-9)


def test_the_optimizer_of_the_user_carries_the_stamp_and_reads_it(mech):
    first = start(mech=mech, keys=False)
    train(first, 8)
    inner = through_a_file(first.optimizer.original_optimizer.state_dict())
    assert inner["anechoic"] == first.optimizer.state_dict()["anechoic"]
    second = start(mech=mech, keys=False)
    for optimizer in (second.optimizer, second.optimizer.original_optimizer):
        with pytest.raises(ReplayError, match=r"8 releases get_epsilon would forget"):
            optimizer.load_state_dict(inner)
    second.engine.charge(inner, releases=8)
    second.optimizer.original_optimizer.load_state_dict(inner)
    assert second.engine.get_epsilon(DELTA) > 0


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.slow
def test_a_state_that_was_loaded_before_make_private_is_refused(mech, rule):
    def plain(parameters):
        return rule(parameters, lr=0.01)

    first = start(mech=mech, keys=False, optimizer=plain)
    train(first, 8)
    saved = through_a_file(first.optimizer.state_dict())

    def loaded(parameters):
        optimizer = plain(parameters)
        optimizer.load_state_dict(saved)
        return optimizer

    with pytest.raises(ReplayError, match=r"8 releases get_epsilon would forget.*engine\.charge\(state\)"):
        train(start(mech=mech, keys=False, optimizer=loaded), 1)
    paid = start(mech=mech, keys=False, optimizer=loaded)
    paid.engine.charge(saved, releases=8)
    train(paid, 2)
    assert all("anechoic" not in group for group in paid.optimizer.param_groups)


@pytest.mark.parametrize("stamp", [None, {}, {"run": "one"}])
def test_statistics_in_lists_are_seen_and_a_stamp_without_entries_is_none(mech, stamp):
    run = start(mech=mech)
    state = {"state": {0: {"kept": [torch.zeros(2)]}}, "param_groups": [], "anechoic": stamp}
    with pytest.raises(GuaranteeError, match="does not say what was released"):
        run.optimizer.load_state_dict(state)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def of_a_plain_run(rule=adam):
    """The state of an optimizer that was never private, after a step."""
    model = network()
    optimizer = rule(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.Adagrad])
def test_states_without_statistics_are_taken_as_they_are(mech, rule, caplog):
    """Adagrad's constructor makes tensors, of no data."""
    run = start(mech=mech, keys=False, optimizer=lambda parameters: rule(parameters, lr=0.1))
    assert "earlier gradients" not in caplog.text
    plain = rule(network().parameters(), lr=0.25).state_dict()
    run.optimizer.load_state_dict(plain)
    assert run.optimizer.param_groups[0]["lr"] == 0.25
    assert run.engine.get_epsilon(DELTA) == 0.0
    with pytest.raises(CheckpointError, match="not of a private optimizer"):
        run.engine.charge(plain)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.few(2)
def test_a_stamp_that_was_taken_off_does_not_reset_the_count(mech, inner):
    first = start(mech=mech, keys=False, optimizer=adam)
    train(first, 8)
    saved = framework_saves(first)
    stripped = unstamped(saved["optimizer"])
    second = fresh(saved, mech=mech, optimizer=adam)
    loading = second.optimizer.original_optimizer if inner else second.optimizer
    with pytest.raises(GuaranteeError, match=r"does not say what was released.*before make_private"):
        loading.load_state_dict(stripped)
    second.engine.charge(mech)
    loading.load_state_dict(stripped)
    assert second.engine.get_epsilon(DELTA) >= mech.epsilon(DELTA)


@pytest.mark.parametrize("rule", [adam, torch.optim.Adagrad])
def test_public_statistics_are_loaded_before_the_run(mech, rule, caplog):
    public = of_a_plain_run(rule)

    def loaded(parameters):
        optimizer = rule(parameters)
        optimizer.load_state_dict(public)
        return optimizer

    run = start(mech=mech, keys=False, optimizer=loaded)
    assert "tensors of statistics of earlier gradients" in caplog.text
    train(run, 2)
    assert all(int(state["step"]) == 3 for state in run.optimizer.state.values())
    with pytest.raises(GuaranteeError, match="charge its mechanism first"):
        start(mech=mech, keys=False, optimizer=rule).optimizer.load_state_dict(public)


def test_a_mechanism_is_charged(mech):
    run = start(mech=mech)
    other = Mechanism(Identity(4), FixedOrder(40, 8, steps=4), 2.0)
    run.engine.charge(other)
    assert run.engine.get_epsilon(DELTA) == pytest.approx(other.epsilon(DELTA), rel=1e-9)
    run.engine.charge(other)  # one more of the kind
    assert run.engine.get_epsilon(DELTA) > 1.2 * other.epsilon(DELTA)
    step(run, next(iter(run.loader)))
    assert run.engine.get_epsilon(DELTA) > other.epsilon(DELTA)
    with pytest.raises(ValueError, match="releases=5 must lie between 0 and n=4"):
        run.engine.charge(other, releases=5)
    with pytest.raises(MismatchError, match="cannot be composed"):
        run.engine.charge(Mechanism(Identity(4), Poisson(40, 8, 4), 2.0, unit="user"))


def test_a_run_under_another_mechanism_needs_that_mechanism(mech):
    first = start(mech=mechanism("fixed", noise_std=3.0), keys=False)
    train(first, 5)
    saved = framework_saves(first)
    second = fresh(saved, mech=mech)
    with pytest.raises(MismatchError, match="pass it too"):
        second.engine.charge(saved["optimizer"])
    second.engine.charge(saved["optimizer"], first.mechanism, releases=5)
    second.optimizer.load_state_dict(saved["optimizer"])
    assert second.engine.get_epsilon(DELTA) == pytest.approx(first.engine.get_epsilon(DELTA), rel=1e-6)
