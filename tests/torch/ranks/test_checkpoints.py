"""A checkpoint of ranks is that of one process: it goes on on any number of them, bit for bit."""

import os
import random
import shutil
import signal
from dataclasses import replace

import pytest

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError
from anechoic.strategies import BLT, BandedInverse
from anechoic.torch.checkpoints import checkpoint
from tests.floats import same_bits
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train
from tests.torch.setting import network

pytestmark = pytest.mark.slow
AT = 3


def strategy():
    return replace(exact("fixed"), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5]))


def saving(folder, *, keys=True, **options):
    def work(rank):
        run = begun(strategy(), model=network(dropout=0.2), keys=not keys or options.get("keys", False))
        train(run, AT)
        run[0].save_checkpoint(path=folder / "run.ckpt", keys=keys)
        return train(run)

    return work


def resuming(folder, *, keys=True):
    def work(rank):
        run = begun(strategy(), model=network(seed=0, dropout=0.2), keys=not keys)
        run[0].load_checkpoint(path=folder / "run.ckpt")
        assert run[0].releases == AT
        return train(run), run[0].get_epsilon(1e-6)

    return work


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (1, 2), (3, 1), (2, 2)])
def test_a_run_goes_on_on_another_number_of_ranks(tmp_path, before, after, keys):
    found = results(before, saving(tmp_path, keys=keys))
    whole = digests(tmp_path)
    again = results(after, resuming(tmp_path, keys=keys))
    assert all(same_bits(found[0], weights) for weights, _ in again)
    assert len({epsilon for _, epsilon in again}) == 1
    assert digests(tmp_path) == whole and len(whole) == STEPS - AT


@pytest.mark.parametrize("name", ["run.ckpt", "folder"])
def test_noise_that_is_made_again_goes_on_on_another_number_of_ranks(tmp_path, name):
    inverse = replace(exact("fixed"), strategy=BandedInverse(STEPS, [1.0, -0.5]))

    def work(rank, begin=0, budget=1):
        run = begun(inverse, memory_budget=budget)
        if begin:
            run[0].load_checkpoint(path=tmp_path / name)
        release = run[0]._current().release
        assert release.way == "regenerate" and release.noise_bytes == 0
        if not begin:
            train(run, AT)
            run[0].save_checkpoint(path=tmp_path / name)
        return train(run)

    (tmp_path / "folder").mkdir()
    found = results(2, work)
    for budget in (1, None):  # what the checkpoint says is kept
        again = results(3, lambda rank, budget=budget: work(rank, AT, budget))
        assert all(same_bits(found[0], weights) for weights in again)


def test_a_file_of_ranks_is_that_of_one_process(tmp_path):
    files = []
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()

        def work(rank, folder=tmp_path / str(count)):
            run = begun(strategy(), model=network(dropout=0.2))
            train(run, AT)
            run[0].save_checkpoint(path=folder / "run.ckpt")

        results(count, work)
        files.append(checkpoint.read(tmp_path / str(count) / "run.ckpt"))
    one, two = files
    assert same_bits(one["noise"]["rows"], two["noise"]["rows"])
    assert {**one["noise"], "rows": 0} == {**two["noise"], "rows": 0}
    assert one["drawn"] == two["drawn"] and one["settings"] == two["settings"]


def test_a_stale_slice_is_refused_on_all(tmp_path):
    def work(rank):
        run = begun(strategy(), keys=True)
        for at in (2, 4):
            train(run, at)
            run[0].save_checkpoint(path=tmp_path / f"{at}.ckpt")

    results(2, work)

    def stale(rank):
        begun(strategy(), keys=True)[0].load_checkpoint(path=tmp_path / f"{(2, 4)[rank]}.ckpt")

    for error in on_ranks(2, stale):
        assert isinstance(error, DesynchronizedError) and "different checkpoints, of releases 2, 4" in str(
            error
        )

    def missing(rank):
        begun(strategy(), keys=True)[0].load_checkpoint(path=tmp_path / ("4.ckpt", "none.ckpt")[rank])

    first, second = on_ranks(2, missing)
    assert isinstance(first, DesynchronizedError) and "rank 1 failed at load_checkpoint" in str(first)
    assert isinstance(second, CheckpointError)


def test_a_checkpoint_that_rank_0_alone_saves_is_refused(tmp_path):
    def work(rank):
        run = begun()
        train(run, 2)
        if rank == 0:
            run[0].save_checkpoint(path=tmp_path / "run.ckpt")
        train(run)

    for error in on_ranks(2, work, timeout=20):
        assert isinstance(error, DesynchronizedError) and "calls save_checkpoint" in str(error), error


def test_chunks_are_part_of_a_run(tmp_path):
    results(2, saving(tmp_path))

    def work(rank):
        begun(strategy(), chunk_rows=None, keys=False)[0].load_checkpoint(path=tmp_path / "run.ckpt")

    (error,) = on_ranks(1, work)
    assert isinstance(error, MismatchError) and "PrivacyEngine(chunk_rows)=None was 8" in str(error)


def killed_at(tmp_path, seed):
    """A run of three ranks, one of which is killed somewhere; then it goes on on others, until it is over."""
    draw = random.Random(seed)
    place = tmp_path / str(seed)
    place.mkdir()

    def work(rank, victim, moment):
        run = begun(strategy(), model=network(dropout=0.2), keys=True, journal=place)
        path = place / "run.ckpt"
        if path.exists():
            run[0].load_checkpoint(path=path)
        if rank == victim:
            _die_at(run[0]._current(), *moment)
        return train(run, each=lambda engine: _saved(engine, path))

    for attempt in range(8):
        count = draw.choice([1, 2, 3])
        moment = draw.choice(("agree", "_made", "record", "joined", "saved")), draw.randrange(1, 4)
        victim = draw.randrange(count) if attempt < 5 else None
        found = on_ranks(count, lambda rank, v=victim, m=moment: work(rank, v, m), timeout=60)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, (Died, DesynchronizedError)):
                raise one
        if not any(isinstance(one, BaseException) for one in found):
            return found[0], digests(place)
    raise AssertionError("the run never ended")


def _saved(engine, path):
    if engine.releases % 2 == 0:
        engine.save_checkpoint(path=path)


def _die_at(run, name, count):
    """Kill this process at the `count`-th time that something is done."""
    left = [count]
    owner = {
        "agree": run.release,
        "_made": run.release,
        "record": run.recorder.journal or run.release,
        "joined": run.release.ranks,
        "saved": run.release,
    }[name]
    name = {"record": "record" if run.recorder.journal else "_made", "saved": "saved_noise"}.get(name, name)
    before = getattr(owner, name, None)
    if before is None:  # one process has none of it
        return

    def counted(*given, **named):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*given, **named)

    setattr(owner, name, counted)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [0, 10, 20, 30])
def test_whichever_rank_is_killed_no_release_has_two_contents(tmp_path, first):
    whole = results(1, lambda rank: train(begun(strategy(), model=network(dropout=0.2), journal=tmp_path)))[0]
    releases = digests(tmp_path)
    for seed in range(first, first + 4):
        weights, found = killed_at(tmp_path, seed)
        assert same_bits(weights, whole) and found == releases
        shutil.rmtree(tmp_path / str(seed))
