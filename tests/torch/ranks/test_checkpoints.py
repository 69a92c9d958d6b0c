"""A checkpoint of ranks is that of one process: it goes on on any number of them, bit for bit."""

import os
import random
import signal
from collections import defaultdict
from dataclasses import replace

import pytest

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError
from anechoic.runs.digests import digest_key_of, digest_of
from anechoic.strategies import BLT
from anechoic.torch.structure import bits
from tests.floats import same_bits
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train
from tests.torch.setting import NOISE_KEY, network

AT = 3


def run_of(**options):
    mech = replace(exact("fixed"), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5]))
    return begun(mech, model=network(dropout=0.2), **options)


def saving(folder, *, keys=True, only_first=False):
    def work(rank):
        run = run_of(keys=not keys)
        train(run, AT)
        if rank == 0 or not only_first:
            run[0].save_checkpoint(path=folder / "run.ckpt", keys=keys)
        return train(run)

    return work


def resuming(folder, *, keys=True, chunk_rows=8):
    def work(rank):
        run = run_of(keys=not keys, chunk_rows=chunk_rows)
        run[0].load_checkpoint(path=folder / "run.ckpt")
        epsilon = run[0].get_epsilon(1e-6)  # of all that rank 0's journal knows
        assert run[0].releases == AT
        train(run)
        assert run[0].get_epsilon(1e-6) == epsilon
        return train(run), epsilon

    return work


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [(1, 2, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(2, 1, False), (3, 2, True)])],
)
def test_a_run_goes_on_on_another_number_of_ranks(tmp_path, before, after, keys):
    found = results(before, saving(tmp_path, keys=keys, only_first=before == 3))
    whole = digests(tmp_path)
    again = results(after, resuming(tmp_path, keys=keys))
    assert all(same_bits(found[0], weights) for weights, _ in again)
    assert len({epsilon for _, epsilon in again}) == 1
    assert digests(tmp_path) == whole and len(whole) == STEPS - AT
    (error,) = on_ranks(1, resuming(tmp_path, keys=keys, chunk_rows=None))  # chunks are part of a run
    assert isinstance(error, MismatchError) and "PrivacyEngine(chunk_rows)=None was 8" in str(error)


@pytest.mark.slow
def test_ranks_that_load_different_checkpoints_are_refused(tmp_path):
    def work(rank):
        run = run_of()
        for at in (2, 4):
            train(run, at)
            run[0].save_checkpoint(path=tmp_path / f"{at}.ckpt")

    results(2, work)

    def load(*names):
        return on_ranks(2, lambda rank: run_of()[0].load_checkpoint(path=tmp_path / names[rank]))

    for error in load("2.ckpt", "4.ckpt"):
        assert isinstance(error, DesynchronizedError)
        assert "different checkpoints, of releases [2, 4]" in str(error)
    first, second = load("4.ckpt", "none.ckpt")
    assert isinstance(first, DesynchronizedError) and "rank 1 failed at load_checkpoint" in str(first)
    assert isinstance(second, CheckpointError)


def killed_at(place, draw, kills):
    """A run of ranks, one of which is killed somewhere, again and again until it is over; its weights."""

    def work(rank, victim, moment):
        run = run_of(journal=place)
        path = place / "run.ckpt"
        if path.exists():
            run[0].load_checkpoint(path=path)
        private = run[0]._current()
        if rank == victim:
            _die_at(private, *moment)
        make, log = (
            private.noise_adder.noisy_gradients,
            os.open(place / f"{rank}.log", os.O_APPEND | os.O_CREAT | os.O_WRONLY),
        )

        def noted(step, sums):
            released = make(step, sums)
            given = digest_of([bits(part.detach()).numpy() for part in released], digest_key_of(NOISE_KEY))
            os.write(log, f"{step} {given}\n".encode())
            return released

        private.noise_adder.noisy_gradients = noted
        return train(run, each=lambda engine: engine.releases % 2 or engine.save_checkpoint(path=path))

    for attempt in range(8):
        count = draw.choice([2, 3])
        moment = draw.choice(("agree", "add_up", "record", "exchange", "save")), draw.randrange(1, 4)
        victim = draw.randrange(count) if attempt < kills else None
        found = on_ranks(count, lambda rank, v=victim, m=moment: work(rank, v, m), timeout=60)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, (Died, DesynchronizedError)):
                raise one
        if not any(isinstance(one, BaseException) for one in found):
            return found[0]
    raise AssertionError("the run never ended")


def _die_at(run, name, count):
    """Kill this process at the `count`-th time that something is done."""
    left = [count]
    owner, name = {
        "agree": (run.noise_adder, "agree"),
        "add_up": (run.noise_adder.ranks, "add_up"),
        "record": (
            (run.recorder.journal, "record") if run.recorder.journal else (run.noise_adder, "noisy_gradients")
        ),
        "exchange": (run.noise_adder.ranks, "exchange"),
        "save": (run.ledger, "fix_micro_batch"),
    }[name]
    before = getattr(owner, name)

    def counted(*given, **named):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*given, **named)

    setattr(owner, name, counted)


def check_kills(place, seed, kills, whole, releases):
    """Whatever any rank was given is what the journal says, and the run ends as one that was never killed."""
    place.mkdir()
    weights = killed_at(place, random.Random(seed), kills)
    assert same_bits(weights, whole) and digests(place) == releases
    given = defaultdict(set)
    for log in place.glob("*.log"):
        for line in log.read_text().splitlines():
            given[int(line.split()[0])].add(line.split()[1])
    assert {step: {content} for step, content in enumerate(releases)} == given


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 9), marks=pytest.mark.slow)])
def test_whichever_rank_is_killed_no_release_has_two_contents(tmp_path, seeds):
    whole = results(1, lambda rank: train(run_of(journal=tmp_path)))[0]
    for seed in seeds:
        check_kills(tmp_path / str(seed), seed, 5 if len(seeds) > 1 else 1, whole, digests(tmp_path))
