"""Scripts in the style of Opacus's tutorials run as they are, or after the line that a message names."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from anechoic.errors import AnechoicError
from tests.marks import mostly_slow

FOLDER = Path(__file__).parent / "opacus_scripts"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "tiny"))
#: What else has to change beside the import: words of the message that says so, and the edits.
EDITS = {
    "memory_manager": (
        "from anechoic.torch import BatchMemoryManager",
        [
            (
                "from opacus.utils.batch_memory_manager import BatchMemoryManager",
                "from anechoic.torch import BatchMemoryManager",
            )
        ],
    ),
    "virtual_steps": (
        "from anechoic.torch import BatchMemoryManager",
        [
            (
                "parts = loader",
                "from anechoic.torch import BatchMemoryManager\nparts = BatchMemoryManager("
                "data_loader=loader, max_physical_batch_size=8, optimizer=optimizer).__enter__()",
            ),
            ("    optimizer.signal_skip_step(do_skip=i % 2 == 0)\n", ""),
        ],
    ),
    "noise_scheduler": (
        r"no ExponentialNoise\(optimizer, …\), and no step\(\) of it",
        [
            ("noise_scheduler = ExponentialNoise(optimizer, gamma=0.9)\n", ""),
            ("    noise_scheduler.step()\n", ""),
        ],
    ),
    "per_layer": (
        "Write clipping='flat', max_grad_norm=1",
        [('clipping="per_layer", max_grad_norm=[0.5, 0.5, 0.5, 0.5]', 'clipping="flat", max_grad_norm=1')],
    ),
    "expanded_weights": (
        r"grad_sample_mode='ew' is not supported: use one of .*'auto'",
        [('grad_sample_mode="ew", poisson_sampling=False', 'grad_sample_mode="auto"')],
    ),
}

QUICK = ("mnist", "metrics", *EDITS)


def run(name, edits=(), *, ours=True):
    """What the script has at its end."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if ours:
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


@pytest.mark.parametrize("name", mostly_slow(SCRIPTS, quick=QUICK))
@pytest.mark.slow
def test_scripts_of_opacus_run_as_they_are_or_name_the_line(name):
    words, edits = EDITS.get(name, ("", []))
    if edits:
        with pytest.raises(AnechoicError, match=words):
            run(name)
    found = run(name, edits)
    assert 0 < found["epsilon"] < 60
    assert found["privacy_engine"].releases >= 3 - (name == "memory_manager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_opacus_runs_them_too(name):
    torch.manual_seed(1)
    assert run(name, ours=False)["epsilon"] > 0


def test_most_need_no_edit_beside_the_import():
    assert len(SCRIPTS) == 22 and len(SCRIPTS) - len(EDITS) >= 17
