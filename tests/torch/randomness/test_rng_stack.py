"""Several runs in one process: each works under generators of its own, and the script's come back."""

import gc
import threading

import pytest
import torch

from anechoic.errors import GuaranteeError
from anechoic.torch.checkpoints.checkpoint import read
from anechoic.torch.generators import is_secret
from anechoic.torch.randomness.modes import SecretDraws
from tests.torch.setting import mechanism, network, start, step


def made(mode="ghost", **options):
    run = start(mode, mech=mechanism(steps=3), model=network(dropout=0.5), keys=False, **options)
    run.drawn = []
    run.model[2].register_forward_pre_hook(lambda *_: run.drawn.append(torch.get_rng_state()))
    return run


def secret(state):
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    found = is_secret(torch.initial_seed())
    torch.set_rng_state(now)
    return found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_runs_in_lockstep_draw_by_keys_and_give_the_script_its_own_back(order):
    runs = [made(), made()]
    for t, batches in enumerate(zip(*(run.loader for run in runs), strict=False)):
        for place in order:
            step(runs[place], batches[place])
        outside = torch.get_rng_state()
        assert not secret(outside)
        torch.manual_seed(t)  # known to everybody
    states = [state for run in runs for state in run.drawn]
    assert all(map(secret, states))  # which rows that are compared draw again
    assert len({state.numpy().tobytes() for state in states}) == 6
    assert [run.engine.releases for run in runs] == [3, 3]


def test_a_checkpoint_holds_no_generator_of_another_run(tmp_path):
    one, other = made(), made(engine={"noise_key": bytes([8]) * 32, "sampling_key": bytes([9]) * 32})
    torch.manual_seed(7)
    before = torch.get_rng_state()
    next(iter(one.loader))
    step(other, next(iter(other.loader)))
    assert is_secret(torch.initial_seed())  # of the first run, whose batch is in hand
    other.engine.save_checkpoint(path=tmp_path / "run", keys=False)
    assert torch.equal(read(tmp_path / "run")["rng"]["torch"], before)
    one.optimizer.abandon_batch()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_set_in_the_loop_is_not_what_the_model_draws_by():
    run = made()
    batch = next(iter(run.loader))
    torch.manual_seed(0)
    plain = torch.rand(3)
    torch.manual_seed(0)
    step(run, batch)
    assert all(map(secret, run.drawn))
    assert run.engine.releases == 1
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), plain)


def test_a_run_that_is_gone_leaves_nothing_behind():
    run = made()
    next(iter(run.loader))
    assert SecretDraws.active()
    del run
    gc.collect()
    assert not SecretDraws.active()


def test_two_threads_with_a_batch_each_are_refused():
    one, other = made(), made()
    first = next(iter(one.loader))
    found = []

    def work(what):
        try:
            found.append(what())
        except GuaranteeError as error:
            found.append(str(error))

    def in_a_thread(what):
        thread = threading.Thread(target=work, args=(what,))
        thread.start()
        thread.join(60)

    in_a_thread(lambda: next(iter(other.loader)))
    assert "another run has a batch in hand" in found[0] and "process of its own" in found[0]
    step(one, first)
    in_a_thread(lambda: step(other, next(iter(other.loader))))
    assert other.engine.releases == 1 and all(map(secret, other.drawn))
    next(iter(other.loader))
    in_a_thread(lambda: step(one, next(iter(one.loader))))
    assert "another run has a batch in hand" in found[2]
