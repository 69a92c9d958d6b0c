"""Whole training processes, forked from one that has loaded everything: to be killed, resumed and compared.

python -m tests.slow.torch.processes FOLDER COMMAND…, which prints what they found as one line of JSON.
"""

import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import CheckpointError, GuaranteeError, UnsupportedError
from anechoic.runs import digest_key_of
from anechoic.runs.digests import digest_of
from anechoic.runs.journal import read_journal
from anechoic.runs.release_chain import begun
from anechoic.torch import PrivacyEngine, read_mechanism
from tests.torch import setting
from tests.torch.setting import FEATURES, mechanism

EXAMPLES, STEPS = 40, 16
REFUSED = 3


class Augmented(setting.Augmented):
    """Adds `offset` too."""

    def __init__(self, x, y, offset=0.0):
        super().__init__(x, y)
        self.offset = offset

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.offset, y


def examples():
    return setting.data(EXAMPLES, seed=3).tensors


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def watched(engine, optimizer, log):
    """Write down what the user's optimizer is given, as it is given it."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    identity, key = engine._current().identity, digest_key_of(engine._current().keys.noise)

    def seen(inner, *_):
        grads = [p.grad.detach().contiguous() for g in inner.param_groups for p in g["params"]]
        digest = digest_of((grad.reshape(-1).view(torch.uint8).numpy() for grad in grads), key)
        os.write(handle, f"{identity} {engine.releases - 1} {digest}\n".encode())

    optimizer.register_step_pre_hook(seen)


def train(
    folder, log, *, mode="rows", sampling="fixed", optimizer="sgd", workers=0, every=5, offset=0.0,
    keys=False, dataset=None, die_at=None, keep=False,
):  # fmt: skip
    """One script, the same in every process: it resumes where there is a checkpoint."""
    path = folder / "run.ckpt"
    dataset = Augmented(*examples(), offset) if dataset is None else dataset
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    options = {"noise_key": bytes(range(32)), "sampling_key": bytes(32), "journal": folder} if keys else {}
    engine = PrivacyEngine(**options)
    mech = read_mechanism(path) if path.exists() else mechanism(sampling, steps=STEPS, examples=EXAMPLES)
    module, private, *criterion, loader = engine.make_private(
        module=model, optimizer=OPTIMIZERS[optimizer](model.parameters()), criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers), mechanism=mech,
        grad_sample_mode=mode,
    )  # fmt: skip
    criterion = criterion[0] if criterion else nn.CrossEntropyLoss()
    if path.exists():
        engine.load_checkpoint(path=path)
    watched(engine, private, log)
    while engine.releases < STEPS:
        for x, y in loader:
            private.zero_grad()
            criterion(module(x), y).backward()
            private.step()
            if engine.releases == die_at:
                os._exit(0)
            if engine.releases % every == 0:
                engine.save_checkpoint(path=path)
                if keep:
                    engine.save_checkpoint(path=folder / f"{engine.releases}.ckpt")
                with torch.no_grad():  # an evaluation, whose loader draws a seed, and masks in train() mode
                    for x_, _ in DataLoader(TensorDataset(*examples()), batch_size=16):
                        model(x_)
    torch.save([p.detach() for p in model.parameters()], folder / "end.pt")


def child(work):
    """Start `work` in a process of its own, which leads a group with its data loader's workers."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        warnings.simplefilter("ignore")
        work()
        code = 0
    except (CheckpointError, GuaranteeError, UnsupportedError) as error:
        print(error, file=sys.stderr)
        code = REFUSED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(pid, log, lines, delay):
    """Exit code of a child, killed `delay` seconds after its log has so many lines unless it ended before."""
    reached = None
    while reached is None or time.monotonic() < reached + delay:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if reached is None and log.read_bytes().count(b"\n") >= lines:
            reached = time.monotonic()
        time.sleep(0.001)
    os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
    return ended(pid)


def seen_in(logs):
    """{(run, position): digests} of everything that optimizers were given; torn last lines left out."""
    found = {}
    for log in logs:
        for line in Path(log).read_text().splitlines():
            if len(fields := line.split()) == 3 and len(fields[2]) == 64:
                found.setdefault((fields[0], int(fields[1])), set()).add(fields[2])
    return found


def judge(folder, logs):
    """What must be empty: releases of two kinds at one position, and those that the journal does not know."""
    seen = seen_in(logs)
    twice = [position for (_, position), digests in seen.items() if len(digests) > 1]
    unknown = []
    for path in folder.glob("*.journal"):
        if not begun(path):  # killed as it was made: no release that it should know was made then
            continue
        record = read_journal(path)
        for (run, position), digests in seen.items():
            if run == record.identity and position >= record.first:
                known = position < record.end and digests == {record.digests[position - record.first]}
                unknown += [] if known else [position]
    return {"twice": twice, "unknown": unknown, "repeated": repeated(logs), "releases": len(seen)}


def repeated(logs):
    """Releases that more than one process made."""
    counts = {}
    for log in logs:
        for key in seen_in([log]):
            counts[key] = counts.get(key, 0) + 1
    return sum(count > 1 for count in counts.values())


def kills(folder, wanted, seed):
    """Kill processes of ever other scripts at random moments until `wanted` were killed."""
    chance = random.Random(seed)
    grid = list(itertools.product(("rows", "ghost"), ("fixed", "poisson"), OPTIMIZERS, (0, 2)))
    chance.shuffle(grid)
    done = {"kills": 0, "refused": 0, "twice": 0, "unknown": 0, "repeated": 0, "ends": 0, "odd": []}
    for number, (mode, sampling, optimizer, workers) in enumerate(itertools.cycle(grid)):
        if done["kills"] >= wanted:
            break
        place, logs = folder / str(number), []
        place.mkdir()
        script = {"mode": mode, "sampling": sampling, "optimizer": optimizer, "workers": workers}
        script |= {"keys": chance.random() < 0.5, "every": chance.choice((1, 4, 5))}
        for attempt in range(12):
            logs.append(place / f"{attempt}.log")
            logs[-1].touch()
            # now and then somebody resumes another script
            offset = 0.5 if attempt and chance.random() < 0.2 else 0.0
            pid = child(partial(train, place, logs[-1], offset=offset, **script))
            last = attempt == 11 or done["kills"] >= wanted
            lines = 10**9 if last else chance.randrange(14)
            code = killed(pid, logs[-1], lines, chance.uniform(0.0, 0.02 if lines else 0.5))
            done["kills"] += code == -signal.SIGKILL
            done["refused"] += code == REFUSED
            if code not in (0, REFUSED, -signal.SIGKILL):
                done["odd"].append([number, attempt, code])
            if code == 0 or (code == REFUSED and not offset):  # the changed script's releases came first
                break
        found = judge(place, logs)
        done["twice"] += len(found["twice"])
        done["unknown"] += len(found["unknown"])
        done["repeated"] += found["repeated"]
        done["ends"] += (place / "end.pt").exists()
    return done


class Late(Augmented):
    """Draws from a generator of its own, once it has been read so many times."""

    def __init__(self, after):
        super().__init__(*examples())
        self.source, self.read, self.after = np.random.default_rng(0), 0, after

    def __getitem__(self, index):
        self.read += 1
        x, y = super().__getitem__(index)
        return (x + float(self.source.normal()) if self.read > self.after else x), y


def resumed(folder):
    """A script is ended between two checkpoints and started again: the same, or with something changed."""
    found = {}

    def attempt(name, change=lambda place: None, first=None, second=None, into=None):
        place = folder / name
        place.mkdir()
        logs = [place / "a.log", place / "b.log"]
        [log.touch() for log in logs]
        codes = [ended(child(lambda: train(place, logs[0], die_at=9, **(first or {}))))]
        change(place)
        codes.append(ended(child(lambda: train(into or place, logs[1], **(second or {})))))
        found[name] = {"codes": codes, **judge(place, logs)}

    attempt("unchanged")
    attempt("other optimizer", second={"optimizer": "adam"})
    attempt("other augmentation", second={"offset": 0.5})
    attempt("own generator", first={"dataset": Late(0)})
    attempt("late generator", first={"dataset": Late(50)}, second={"dataset": Late(50)})
    attempt("rolled back", first={"keep": True}, change=lambda p: shutil.copy(p / "5.ckpt", p / "run.ckpt"))
    attempt("without journal", change=lambda p: [path.unlink() for path in p.glob("*.journal")])
    attempt("cut journal", change=lambda p: [os.truncate(path, 0) for path in p.glob("*.journal-wal")])
    copy = folder / "the copy"
    attempt("copied", change=lambda p: shutil.copytree(p, copy), into=copy)
    return found


def sweep(folder):
    """An engine is made once, and make_private is called in each fork of its process."""
    found = {}
    for name, keys in (("drawn", {}), ("given", {"noise_key": bytes(range(32)), "sampling_key": bytes(32)})):
        engine, codes = PrivacyEngine(**keys), []

        def once(number, engine=engine, name=name):
            torch.manual_seed(0)
            model = nn.Linear(FEATURES, 3)
            module, private, loader = engine.make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
                data_loader=DataLoader(TensorDataset(*examples()), batch_size=8),
                mechanism=mechanism("fixed", steps=5, examples=EXAMPLES),
            )
            seen = []
            private.attach_step_hook(
                lambda q: seen.append(torch.cat([p.grad.flatten() for p in q.params]).clone())
            )
            for x, y in loader:
                private.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                private.step()
            torch.save(torch.stack(seen), folder / f"{name}{number}.pt")

        codes = [ended(child(lambda number=number: once(number))) for number in range(2)]
        files = [folder / f"{name}{number}.pt" for number in range(2)]
        rows = [torch.load(file, weights_only=True) for file in files if file.exists()]
        found[name] = {"codes": codes}
        if len(rows) == 2:
            found[name]["difference"] = float(
                (rows[0] - rows[1]).norm(dim=1).min() / rows[0].norm(dim=1).max()
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    # what loads late and is slow to load, once for all forks
    torch.optim.SGD([torch.zeros(1)], lr=0.0)
    importlib.import_module("cryptography.hazmat.primitives.ciphers")
    place, found = Path(sys.argv[1]), {}
    for command in sys.argv[2:]:  # a name, and numbers behind colons
        name, *numbers = command.split(":")
        (place / name).mkdir()
        found[name] = globals()[name](place / name, *map(int, numbers))
    print(json.dumps(found))
