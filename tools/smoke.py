"""What an installed anechoic must do, run in its own environment from a folder that is not the repository's.

    cd /tmp && /path/to/env/bin/python -I /path/to/tools/smoke.py

The core is always tried. Each extra that is installed is tried too; of one that is not, its error message.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import anechoic as an

EXTRAS = {"torch": "torch", "linear": "sklearn", "flower": "flwr"}  # room: what it imports


def command(*arguments: str) -> str:
    """Runs the console script of this environment; returns what it printed."""
    script = Path(sys.executable).with_name("anechoic")
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    need(done.returncode == 0, f"anechoic {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def need(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"smoke: {what}")


def installed() -> None:
    need(Path(an.__file__).is_relative_to(sys.prefix), f"{an.__file__} is not of this environment")
    need(metadata.version("anechoic") == an.__version__, "the metadata have another version")
    need(command("--version").strip() == f"anechoic {an.__version__}", "--version says another one")
    for name in ("py.typed", "demo/flights.npz", "demo/PROVENANCE.md"):
        need(resources.files(an).joinpath(name).is_file(), f"{name} is not in the wheel")


def core() -> None:
    order = an.sampling.FixedOrder(examples=1000, batch_size=10, steps=100)
    best = an.optimize.banded_toeplitz(an.workloads.prefix_sum(100), bands=8)
    mechanism = an.calibrate(best.strategy, sampling=order, epsilon=2.0, delta=1e-6)
    need(0 < mechanism.epsilon() <= 2.0, "calibration misses its epsilon")
    text = mechanism.to_json()
    need(an.Mechanism.from_json(text) == mechanism, "a mechanism is not what its file says")
    stream = an.noise.NoiseStream(mechanism.strategy, 3)
    row, _ = stream.next(stream.init())
    need(bool(np.isfinite(row).all()), "noise is not finite")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mechanism.json")
        shown = command(
            *("plan", "--examples", "1000", "--batch-size", "10", "--epochs", "1", "--epsilon", "1"),
            *("--delta", "1e-6", "--no-random-sampling", "--json", str(file)),
        )
        need("Chosen:" in shown, "plan chooses nothing")
        need(json.loads(file.read_text())["sampling"] is not None, "the plan's mechanism has no sampling")
        need("Privacy unit:" in command("explain", str(file)), "explain prints no statement")


def running_statistics() -> None:
    visits = an.streaming.Stream(an.streaming.Count(), epsilon=1.0, delta=1e-6, horizon=100)
    visits.update(12)
    need(bool(np.isfinite(visits.release().estimate)), "a count is not finite")


def tables() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2000, 2))
    model = an.linear.LogisticRegression(epsilon=2, feature_bounds=(-1, 1), classes=[0, 1])
    model.fit(x, (x.sum(axis=1) > 0).astype(int))
    need("Privacy unit:" in str(model.statement()), "an estimator has no statement")


def training() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 5), torch.randint(2, (64,)))
    model, criterion = torch.nn.Linear(5, 2), torch.nn.CrossEntropyLoss()
    engine = an.torch.PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16, shuffle=True),
        target_epsilon=4.0,
        target_delta=1e-4,
        epochs=1,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    need(0 < engine.get_epsilon(1e-4) <= 4.0, "training misses its epsilon")


def demo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command("demo", "--quick", "--out", folder)
        need(Path(folder, "report.html").stat().st_size > 0, "the demo writes no report")


def missing(room: str, package: str) -> None:
    """A room whose extra is not installed says which one."""
    try:
        importlib.import_module(f"anechoic.{room}")
    except ImportError as error:
        need("anechoic[" in str(error), f"anechoic.{room} without {package} says only: {error}")
    else:
        raise SystemExit(f"smoke: anechoic.{room} was imported without {package}")


def main() -> None:
    tried = [installed, core, running_statistics]
    tried += [tables] if find_spec("sklearn") else []
    tried += [training] if find_spec("torch") else []
    for step in tried:
        step()
    absent = {room: package for room, package in EXTRAS.items() if find_spec(package) is None}
    for room, package in absent.items():
        missing(room, package)
    if all(map(find_spec, ("torch", "rich", "matplotlib", "jinja2"))):
        tried.append(demo)
        demo()
    done = [step.__name__.replace("_", " ") for step in tried]
    print(
        f"smoke: Python {sys.version.split()[0]}, anechoic {an.__version__}: {', '.join(done)} work;", end=" "
    )
    print(f"absent, and said so: {', '.join(absent) or 'nothing'}")


if __name__ == "__main__":
    main()
