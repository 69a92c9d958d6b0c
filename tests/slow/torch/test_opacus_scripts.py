"""Scripts in the style of Opacus's tutorials and of today run as they are, or after what a message names."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from anechoic.errors import AnechoicError
from tests.torch.opacus_scripts import variations

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
FILES = {"checkpoint": ROOT / "tests" / "torch" / "opacus_scripts" / "checkpoint.py"}
TUTORIALS = sorted(variations.TUTORIALS.keys() | FILES.keys())
TODAY = sorted(variations.TODAY)
SCRIPTS = TUTORIALS + TODAY
#: What else has to change beside the import: words of the message that says so, and the edits.
EDITS = {
    "virtual_steps": (
        "from anechoic.torch import BatchMemoryManager",
        [
            (
                "parts = loader",
                "from anechoic.torch import BatchMemoryManager\nparts = BatchMemoryManager("
                "data_loader=loader, max_physical_batch_size=8, optimizer=optimizer).__enter__()",
            ),
            ("        optimizer.signal_skip_step(do_skip=i % 2 == 0)\n", ""),
        ],
    ),
    "noise_scheduler": (
        r"no ExponentialNoise\(optimizer, …\), and no step\(\) of it",
        [
            ("noise_scheduler = ExponentialNoise(optimizer, gamma=0.9)\n", ""),
            ("    noise_scheduler.step()\n", ""),
        ],
    ),
    "expanded_weights": ("add epochs=", [("poisson_sampling=False", "poisson_sampling=False, epochs=1")]),
    "accumulation": (
        "accumulation_steps = 1 and give the DataLoader k times the batch_size",
        [("accumulation_steps = 2", "accumulation_steps = 1"), ("batch_size=8", "batch_size=16")],
    ),
    "grad_scaler": (
        r"GradScaler\(enabled=False\)",
        [('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')],
    ),
    "l2_in_the_loss": (
        "the optimizer's weight_decay",
        [(" + 1e-3 * l2", ""), ("lr=0.1", "lr=0.1, weight_decay=2e-3")],
    ),
    "peft_bf16": (r"Leave out \.to\(torch.bfloat16\)", [(".to(torch.bfloat16)", "")]),
    "regression": (r"squeeze\(\) one", [("criterion(model(x), y)", "criterion(model(x).squeeze(1), y)")]),
    "stream": (r"DataLoader\(list\(dataset\)", [("DataLoader(Stream()", "DataLoader(list(Stream())")]),
    "two_optimizers": (
        r"torch.optim.SGD\(\[{'params': body",
        [
            (
                "SGD(trunk.parameters(), lr=0.1)",
                "SGD([{'params': trunk.parameters()}, {'params': head.parameters(), 'lr': 1e-2}], lr=0.1)",
            ),
            ("head_optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)\n", ""),
            ("        head_optimizer.zero_grad()\n", ""),
            ("        head_optimizer.step()\n", ""),
        ],
    ),
    "unfreezing": (
        "a parameter group with lr 0",
        [
            ("trunk.requires_grad_(False)\n", ""),
            (
                "SGD(model.parameters(), lr=0.1)",
                "SGD([{'params': trunk.parameters(), 'lr': 0}, {'params': head.parameters()}], lr=0.1)",
            ),
            ("trunk.requires_grad_(True)", "optimizer.param_groups[0]['lr'] = 0.1"),
        ],
    ),
    "weighted_sampler": ("Use shuffle=True", [("sampler=sampler", "shuffle=True")]),
}
#: What is refused, and no other line does the same: rows that meet are what the script is about.
REFUSED = {
    "contrastive": "the loss mixes rows",
    "mixup": "rows are put in another order",
}


def run(name, edits=(), *, ours=True):
    """What the script has at its end."""
    text = FILES[name].read_text("utf-8") if name in FILES else variations.program(name)
    for package in ("transformers", "peft"):
        if f"from {package} import" in text:
            pytest.importorskip(package)
    if ours:
        text = text.replace("opacus.utils.batch_memory_manager", "anechoic.torch")
        edits = [("from opacus import PrivacyEngine", "from anechoic.torch import PrivacyEngine"), *edits]
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    module = sys.modules[name] = ModuleType(name)  # classes of a script can be pickled
    try:
        exec(compile(text, name, "exec"), vars(module))
    finally:
        del sys.modules[name]
    return vars(module)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore:Using a target size", "ignore::FutureWarning")
def test_scripts_of_opacus_run_as_they_are_or_name_the_line(name):
    if name in REFUSED:
        with pytest.raises(AnechoicError, match=REFUSED[name]):
            run(name)
        return
    words, edits = EDITS.get(name, ("", []))
    if edits:
        with pytest.raises((AnechoicError, ValueError), match=words):
            run(name)
    found = run(name, edits)
    assert 0 < found["epsilon"] < 60
    assert found["privacy_engine"].releases >= 3 - (name == "memory_manager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TUTORIALS)
def test_opacus_runs_them_too(name):
    torch.manual_seed(1)
    assert run(name, ours=False)["epsilon"] > 0


def test_the_figures_of_the_page():
    text = (ROOT / "docs" / "from-opacus.md").read_text("utf-8")
    said = re.search(
        r"Of (\d+) ordinary scripts.*?, (\d+) run .*?, (\d+) after .*? (\d+) are refused", text, re.S
    )
    plain = len(SCRIPTS) - len(EDITS) - len(REFUSED)
    assert said is not None
    assert tuple(map(int, said.groups())) == (len(SCRIPTS), plain, len(EDITS), len(REFUSED))
    assert EDITS.keys() | REFUSED.keys() <= set(SCRIPTS) and not EDITS.keys() & REFUSED.keys()
