"""kill -9 of any rank at any moment: whatever any rank was given is what the journal says, and that alone."""

import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch import nn

from anechoic.errors import DesynchronizedError, ReplayError
from anechoic.runs.digests import digest_key_of, digest_of
from anechoic.strategies import BLT
from anechoic.torch.structure import bits
from tests.torch.ranks.processes import Died, on_ranks
from tests.torch.ranks.setting import begun, digests, exact, train
from tests.torch.setting import NOISE_KEY

KILLS = int(os.environ.get("ANECHOIC_KILLS", "12"))
STEPS = 12
KEY = digest_key_of(NOISE_KEY)


def other_loss(output, target):
    """Of a script that was changed: what it would release is something else."""
    return nn.functional.cross_entropy(output, 1 - target)


def running(place, *, in_folder, criterion):
    """A run that goes on from its checkpoint if there is one, and writes down what each rank is given."""
    path = place if in_folder else place / "run.ckpt"

    def saved(engine):
        if engine.releases % 3 == 0:
            engine.save_checkpoint(path=path)

    def work(rank):
        run = begun(
            replace(exact("fixed", steps=STEPS), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5])),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            journal=place,
            share_optimizer=in_folder,
        )
        if (place / "run.ckpt").exists():
            run[0].load_checkpoint(path=path)
        release = run[0]._current().release
        make = release.make
        log = os.open(place / f"{rank}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def noted(step, sums):
            released = make(step, sums)
            given = digest_of([bits(part.detach()).numpy() for part in released], KEY)
            os.write(log, f"{step} {given}\n".encode())
            return released

        release.make = noted
        (place / f"{rank}.begun").touch()
        begin = time.monotonic()
        train(run, STEPS, criterion=criterion, each=saved)
        return time.monotonic() - begin

    return work


class Killer:
    """Kills one of the processes some time after all of them have begun."""

    def __init__(self, place, victim, delay):
        self._marks = [place / f"{rank}.begun" for rank in (0, 1)]
        for mark in self._marks:
            mark.unlink(missing_ok=True)
        self._victim, self._delay, self._at = victim, delay, None
        self.killed = False

    def __call__(self, left):
        if self._at is None and all(mark.exists() for mark in self._marks):
            self._at = time.monotonic() + self._delay
        if self._at is not None and time.monotonic() >= self._at and not self.killed and len(left) == 2:
            os.kill(left[self._victim], signal.SIGKILL)
            self.killed = True


def one_run(place, draw, found):
    """One run with as many kills as it takes to the end; adds to the counts in `found`."""
    in_folder, changed = draw.random() < 0.6, False
    while True:
        killer = Killer(place, draw.randrange(2), draw.uniform(0.0, found["seconds"]))
        work = running(place, in_folder=in_folder, criterion=other_loss if changed else None)
        ended = on_ranks(2, work, timeout=30, disturb=killer)
        found["kills"] += killer.killed
        errors = [one for one in ended if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, (Died, DesynchronizedError, ReplayError)):
                raise error
        refused = any(isinstance(one, ReplayError) or "would now be another" in str(one) for one in errors)
        found["refused"] += refused
        if not errors:
            break
        changed = not changed if refused else draw.random() < 0.25
    check(place, found)


def check(place, found):
    """No release was given to anybody in two forms, or in another one than the journal's."""
    recorded = digests(place)
    given = defaultdict(list)
    for rank in (0, 1):
        for line in (place / f"{rank}.log").read_text().splitlines():
            step, content = line.split()
            given[int(step)].append((rank, content))
    assert sorted(given) == list(range(STEPS)) and len(recorded) == STEPS
    for step, every in given.items():
        found["twice"] += len({content for _, content in every}) > 1
        found["unknown"] += sum(content != recorded[step] for _, content in every)
        found["repeated"] += max(sum(one == rank for one, _ in every) for rank in (0, 1)) - 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whichever_rank_is_killed_at_any_moment_no_release_has_two_contents(tmp_path):
    draw = random.Random(KILLS)
    found = dict.fromkeys(("kills", "refused", "twice", "unknown", "repeated"), 0)
    (tmp_path / "whole").mkdir()
    found["seconds"] = max(on_ranks(2, running(tmp_path / "whole", in_folder=True, criterion=None)))
    number = 0
    while found["kills"] < KILLS:
        place = tmp_path / str(number)
        place.mkdir()
        one_run(place, draw, found)
        number += 1
    print(found)
    assert (found["twice"], found["unknown"]) == (0, 0), found
    assert found["repeated"] > 0, found  # or nothing was tried
    assert found["refused"] > 0 or KILLS < 50, found
