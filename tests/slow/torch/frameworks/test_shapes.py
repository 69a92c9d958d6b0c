"""Models that people train, by default: the sum is that of a loop over single rows."""

import importlib.util

import pytest

from tests.slow.torch.frameworks.shapes import shapes
from tests.torch.sums import check_release

pytestmark = pytest.mark.slow

NEEDS = ("BERT", "GPT-2", "T5", "Llama", "Mixtral")


def needed(name):
    wanted = "peft" if "LoRA" in name else "transformers" if any(n in name for n in NEEDS) else "torch"
    if importlib.util.find_spec(wanted) is None:
        pytest.skip(f"{wanted} is not installed")


@pytest.mark.filterwarnings("ignore")  # those of the frameworks
@pytest.mark.parametrize("name", shapes())
def test_a_release_is_that_of_single_rows(name, caplog):
    needed(name)
    check_release(*shapes()[name], mode="auto", clip=0.01, noise=1e-5, bits=24)
    assert "one after another" not in caplog.text
