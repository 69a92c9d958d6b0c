"""examples/accelerate_loop.py and fabric_loop.py: the bare loop bit for bit, also after a kill."""

import importlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.runs import ledger
from anechoic.torch import BatchMemoryManager, PrivacyEngine
from tests.floats import same_bits

ROOT = Path(__file__).resolve().parents[3]
KEYS = {"noise_key": bytes(range(32)), "sampling_key": bytes(range(1, 33))}
#: What the frameworks warn of is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(params=["accelerate", "fabric"])
def loop(request, monkeypatch):
    pytest.importorskip({"accelerate": "accelerate", "fabric": "lightning"}[request.param])
    monkeypatch.syspath_prepend(ROOT / "examples")  # some package of others is called examples, too
    return importlib.import_module(f"{request.param}_loop")


def weights(folder):
    return torch.cat([p.reshape(-1) for p in torch.load(folder / "network.pt", weights_only=True).values()])


@cache
def bare(data):
    """The weights of the same run, by a loop that knows no framework."""
    ledger._MADE.clear()
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    plain = torch.optim.AdamW(network.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.1, total_iters=15)
    model, optimizer, loader = PrivacyEngine(**KEYS).make_private_with_epsilon(
        module=network, optimizer=plain, data_loader=DataLoader(data()[0], batch_size=64, shuffle=True),
        target_epsilon=8.0, target_delta=1e-4, max_grad_norm=1.0, epochs=3, scheduler=scheduler,
    )  # fmt: skip
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=24, optimizer=optimizer) as parts:
        for _ in range(3):
            for x, y in parts:
                last = optimizer.ledger.in_hand.last
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                    outputs = model(x)
                torch.nn.functional.cross_entropy(outputs.float(), y).backward()
                optimizer.step()
                if last:
                    scheduler.step()
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


def test_it_is_the_bare_loop_bit_for_bit(loop, tmp_path, capsys):
    engine = loop.main(tmp_path / "run", **KEYS)
    assert engine.releases == engine.mechanism.steps == 15
    assert 7.5 < engine.get_epsilon(1e-4) <= 8
    assert same_bits(weights(tmp_path / "run"), bare(loop.data))
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and all(line.startswith("accuracy ") for line in shown)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["network.pt"]  # no keys


#: Kills itself after so many parts of batches, three of which make a release; or in the middle of a file.
DYING = """
import os, signal, sys
from pathlib import Path
from anechoic.torch.optimizer import CorrelatedOptimizer
sys.path.insert(0, "examples")
import NAME as loop
parts, saves = PARTS, SAVES
step, replace = CorrelatedOptimizer.step, os.replace
def stepped(self, closure=None):
    global parts
    value = step(self, closure)
    parts -= 1
    if not parts:
        os.kill(os.getpid(), signal.SIGKILL)
    return value
def replaced(*names, **how):
    global saves
    saves -= str(names[1]).endswith("run.ckpt")
    if not saves:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*names, **how)
CorrelatedOptimizer.step, os.replace = stepped, replaced
loop.main(Path(sys.argv[1]), noise_key=bytes(range(32)), sampling_key=bytes(range(1, 33)))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
@pytest.mark.parametrize(("parts", "saves"), [(3 * 8 + 1, 0), (0, 3)], ids=["in a batch", "in a checkpoint"])
def test_killed_and_started_again_it_ends_with_the_same_weights(loop, parts, saves, tmp_path):
    code = DYING.replace("NAME", loop.__name__).replace("PARTS", str(parts)).replace("SAVES", str(saves))
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "run" / "network.pt").exists()
    engine = loop.main(tmp_path / "run", **KEYS)
    assert engine.releases == 15
    assert same_bits(weights(tmp_path / "run"), bare(loop.data))
