"""Opacus is optional: without it everything trains, its layers excepted, and what it alone does says so."""

import subprocess
import sys

import pytest

CODE = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])

sys.meta_path.insert(0, Missing())
"""

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import anechoic.torch
from anechoic.errors import AnechoicError
from anechoic.torch import PrivacyEngine

def start(mode, *layers):
    model = nn.Sequential(*layers)
    data = TensorDataset(torch.randn(40, 6), torch.randint(2, (40,)))
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), data_loader=DataLoader(data, 8),
        noise_multiplier=1.0, max_grad_norm=1.0, epochs=1, grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    return made if mode == "ghost" else (*made[:2], criterion, made[2])

for mode in ("rows", "ghost"):
    model, optimizer, criterion, loader = start(mode, nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

refused = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(6), "LSTM": lambda: nn.LSTM(6, 6), "GRU": lambda: nn.GRU(6, 6),
    "MultiheadAttention": lambda: nn.MultiheadAttention(6, 2),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
}
for name, layer in refused.items():
    try:
        start("ghost", layer(), nn.Linear(6, 2))
    except AnechoicError as error:
        print(name, "refused:", error)
try:
    PrivacyEngine.get_compatible_module(model)
except ImportError as error:
    print(error)
assert "opacus" not in sys.modules
"""


def said(missing, code):
    """What a process prints in which some packages cannot be imported."""
    text = CODE.format(missing=set(missing)) + code
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_models_train_and_what_mixes_examples_is_refused_without_opacus():
    printed = said(["opacus"], TRAINING)
    for name in ("BatchNorm1d", "LSTM", "GRU", "MultiheadAttention", "InstanceNorm1d"):
        assert f"{name} refused:" in printed
    assert "track_running_stats=True" in printed
    assert "'anechoic[opacus]'" in printed


def test_torch_is_asked_for_by_its_extra_and_its_cpu_build():
    code = "try:\n    import anechoic.torch\nexcept ImportError as error:\n    print(error)\n"
    printed = said(["torch", "opacus"], code)
    assert "pip install 'anechoic[torch]'" in printed and "CPU build" in printed


def test_scikit_learn_is_asked_for_by_its_extra():
    code = "try:\n    import anechoic.linear\nexcept ImportError as error:\n    print(error)\n"
    assert "pip install 'anechoic[sklearn]'" in said(["sklearn"], code)
