"""What users pay, by count and not by clock: calls of a step, modules of an import, bytes of the wheel.

The numbers stand in CONTRIBUTING.md, and they only fall (tests/test_architecture.py).
"""

import io
import statistics
import subprocess
import sys
import zipfile
from collections import Counter

import pytest

from tests.test_architecture import COUNTS, PACKAGE, ratchets

WARM, STEPS = 4, 24


def step_cost():
    """(calls, files) of our own code from batch to batch: three layers, batches of 8, a fixed order."""
    import torch

    from anechoic.torch import PrivacyEngine

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(320, 20), torch.randint(2, (320,)))
    model = torch.nn.Sequential(
        *(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU()),
        torch.nn.Linear(16, 2),
    )
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=8),
        target_epsilon=8.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    criterion, calls, ours = torch.nn.CrossEntropyLoss(), Counter(), str(PACKAGE)

    def count(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls[frame.f_code.co_filename] += 1

    found = []
    previous = sys.getprofile()
    try:
        for step, (x, y) in enumerate(loader):
            if step >= WARM:
                found.append((sum(calls.values()), len(calls)))
            if step == WARM + STEPS:
                break
            calls.clear()
            sys.setprofile(count)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    finally:
        sys.setprofile(previous)
    return tuple(int(statistics.median(each)) for each in zip(*found[1:], strict=True))


def modules_of(name):
    """How many modules of ours an import loads; of torch's room that of the name that everybody asks for."""
    asked = f"from {name} import PrivacyEngine" if name == "anechoic.torch" else f"import {name}"
    code = f"{asked}; import sys; print(sum(m.split('.')[0] == 'anechoic' for m in sys.modules))"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)


def wheel_kilobytes():
    """Of the package as a wheel packs it: deflated, file by file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                wheel.write(path, path.relative_to(PACKAGE.parent))
    return round(packed.tell() / 1000)


def held(what, count):
    assert count <= (most := ratchets()[what]), f"{what}: {count}, and at most {most} in CONTRIBUTING.md"


@pytest.fixture(scope="module")
def cost():
    pytest.importorskip("torch", reason="an extra installs it")
    # in a process of its own: what other tests wrote into tensors is looked for in each operation
    code = "from tests.test_counts import step_cost; print(*step_cost())"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parents[1], check=True, capture_output=True
    )
    return tuple(map(int, ran.stdout.split()))


def test_calls_and_files_of_a_step(cost):
    assert cost[0] > 100  # it counts something
    held("calls of a step", cost[0])
    held("files of a step", cost[1])


@pytest.mark.parametrize("name", ["anechoic", "anechoic.errors", "anechoic.streaming", "anechoic.torch"])
def test_modules_of_an_import(name):
    if name.endswith("torch"):
        pytest.importorskip("torch", reason="an extra installs it")
    held(f"modules of {name}", modules_of(name))


def test_kilobytes_of_the_wheel():
    held("kilobytes of the wheel", wheel_kilobytes())


def test_each_count_is_held():
    assert set(COUNTS) == {what for what in ratchets() if " " in what}
