"""Fine-tuning by ghost clipping, with PEFT and in full: the sum is that of a loop over single rows."""

import copy
import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.ghost.layers import ELSEWHERE, layer_kind
from anechoic.torch.sources.ghost.source import _ASKING
from tests.slow.torch.frameworks.shapes import WORDS, drawn, hugging
from tests.torch.sources.ghost_setting import delivered, flat, ghost

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings are those of the frameworks
CLIP, LENGTH = 0.01, 7
TARGETS = {"BERT": ["query", "value"], "GPT-2": ["c_attn", "c_fc"], "Llama": ["q_proj", "gate_proj"]}


def plain(name, dtype):
    return hugging(name)().to(dtype)


def adapted(name, dtype, **options):
    peft = pytest.importorskip("peft")
    given = {
        "r": 2,
        "target_modules": TARGETS[name],
        "lora_dropout": 0.0,
        "init_lora_weights": False,
        **options,
    }
    return peft.get_peft_model(plain(name, dtype), peft.LoraConfig(fan_in_fan_out=name == "GPT-2", **given))


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def tokens(rows=5):
    pytest.importorskip("transformers")
    found = torch.randint(1, WORDS, (2, rows, LENGTH), generator=drawn(3))
    return found[0], found[1]


def released(make, x, y, clip=CLIP, mask=None):
    """The sum of one release, in clip norms, with noise that nobody sees."""
    torch.manual_seed(0)
    model = make()
    data = TensorDataset(x, y) if mask is None else TensorDataset(x, y, mask)
    private, optimizer, criterion, loader = PrivacyEngine(sampling_key=bytes(32)).make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=0.0),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=len(x)),
        poisson_sampling=False,
        mechanism=Mechanism(
            Identity(1), FixedOrder(len(x), len(x), 1), 1e-9 * min(clip, 1e-3), clip_norm=clip
        ),
        grad_sample_mode="ghost",
    )
    for words, labels, *given in loader:
        kept = given[0] if given else torch.ones_like(words)
        criterion(private(input_ids=words, attention_mask=kept).logits.transpose(1, 2), labels).backward()
        optimizer.step()
    return len(x) * torch.cat([p.grad.flatten().double() for p in trained(model)]) / clip


def one_by_one(make, x, y, clip=CLIP, mask=None):
    torch.manual_seed(0)
    model, total = make(), 0.0
    mask = torch.ones_like(x) if mask is None else mask
    for row in range(len(x)):
        model.zero_grad()
        logits = model(input_ids=x[row : row + 1], attention_mask=mask[row : row + 1]).logits
        # a row's own mean: over its labels that count
        nn.functional.cross_entropy(logits.transpose(1, 2), y[row : row + 1]).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]
        vector = torch.cat([part.flatten().double() for part in parts])
        total = total + vector * min(1.0, clip / float(vector.norm())) / clip
    return total


HALF = torch.bfloat16
CASES = {
    **{f"{name}, LoRA": lambda name=name: adapted(name, torch.float32) for name in TARGETS},
    **{f"{name}, LoRA on bfloat16": lambda name=name: adapted(name, HALF) for name in TARGETS},
    "GPT-2, LoRA and the head": lambda: adapted("GPT-2", torch.float32, modules_to_save=["lm_head"]),
    **{name: lambda name=name: plain(name, torch.float32) for name in TARGETS},
}


@pytest.mark.parametrize("clip", [1e-4, 10.0])
@pytest.mark.parametrize("name", CASES)
def test_a_release_by_ghost_clipping_is_that_of_single_rows(name, clip):
    x, y = tokens()
    whole, reference = released(CASES[name], x, y, clip), one_by_one(CASES[name], x, y, clip)
    coarse = "bfloat16" in name
    assert float((whole - reference).norm()) <= (0.05 if coarse else 2e-3) * float(reference.norm())
    rest = released(CASES[name], x[1:], y[1:], clip)
    assert float((whole - rest).norm()) <= 1.001


LENGTHS = torch.tensor([7, 3, 5, 7, 2])
PADDED = {
    "right": torch.arange(LENGTH) < LENGTHS[:, None],
    "left": torch.arange(LENGTH) >= LENGTH - LENGTHS[:, None],
    "nowhere": torch.ones(5, LENGTH, dtype=torch.bool),
}


def attending(name, kind):
    def make():
        model = adapted(name, torch.float32)
        model.set_attn_implementation(kind)
        return model

    return make


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("name", TARGETS)
def test_padded_sentences_are_clipped_as_single_rows_are(name, kind, side):
    x, y = tokens()
    mask = PADDED[side].long()
    y = y.masked_fill(mask == 0, -100)
    make = attending(name, kind)
    whole, reference = released(make, x, y, mask=mask), one_by_one(make, x, y, mask=mask)
    assert float((whole - reference).norm()) <= 2e-3 * float(reference.norm())
    rest = released(make, x[1:], y[1:], mask=mask[1:])
    assert float((whole - rest).norm()) <= 1.001


@pytest.mark.parametrize("name", TARGETS)
def test_a_mask_of_four_axes_is_taken_as_it_is(name):
    x, y = tokens()
    mask = PADDED["right"][:, None, None, :]
    if name != "BERT":
        mask = mask & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    make = attending(name, "sdpa")
    whole, reference = released(make, x, y, mask=mask), one_by_one(make, x, y, mask=mask)
    assert float((whole - reference).norm()) <= 2e-3 * float(reference.norm())


class Given(nn.Module):
    """A model that is handed over something beside its words, which it may look at."""

    def __init__(self, make, hand_over):
        super().__init__()
        self.inner, self.hand_over = make(), hand_over

    def forward(self, input_ids, attention_mask):
        return self.inner(input_ids=input_ids, **self.hand_over(attention_mask))


@pytest.mark.parametrize("name", TARGETS)
def test_places_that_are_handed_over_and_no_mask(name):
    x, y = tokens()
    places = torch.arange(LENGTH).expand(5, -1).contiguous()

    def make():
        return Given(lambda: adapted(name, torch.float32), lambda given: {"position_ids": given})

    whole, reference = released(make, x, y, mask=places), one_by_one(make, x, y, mask=places)
    assert float((whole - reference).norm()) <= 2e-3 * float(reference.norm())


def test_words_that_may_be_padding_and_no_mask():
    x, y = tokens()
    x[2, -1] = 0  # GPT-2 asks whether any row ends with this word, to warn

    def make():
        return Given(lambda: adapted("GPT-2", torch.float32), lambda given: {})

    whole, reference = released(make, x, y), one_by_one(make, x, y)
    assert float((whole - reference).norm()) <= 2e-3 * float(reference.norm())


def test_a_decision_of_the_models_own_is_refused_with_its_remedy():
    def make():
        return Given(
            lambda: adapted("GPT-2", torch.float32),
            lambda given: {} if given.all() else {"attention_mask": given},
        )

    with pytest.raises(GuaranteeError, match=r"one of shape \(rows, 1, queries, keys\) as it is"):
        released(make, *tokens(), mask=PADDED["right"].long())


def test_transformers_asks_whether_it_is_traced_where_that_is_answered():
    for name in _ASKING:
        assert callable(importlib.import_module(name).is_tracing)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"use_dora": True}, "leave use_dora=True out of LoraConfig.*grad_sample_mode='rows'"),
        (
            {"target_modules": ["embed_tokens"]},
            r"leave embeddings out of LoraConfig\(target_modules.*grad_sample_mode='rows'",
        ),
    ],
)
def test_what_peft_has_and_ghost_clipping_does_not_know_is_named_with_its_remedy(options, match):
    with pytest.raises(UnsupportedError, match=match):
        released(lambda: adapted("Llama", torch.float32, **options), *tokens())


def test_layers_of_transformers_are_those_of_their_rules():
    models = pytest.importorskip("transformers").models
    from transformers.pytorch_utils import Conv1D

    x = torch.randn(3, 4, 6, generator=drawn(4))
    found = [Conv1D(5, 6)]
    for module, name in ELSEWHERE:
        if module.startswith("transformers.models"):
            part = getattr(models, module.split(".")[2])
            found.append(getattr(getattr(part, module.split(".")[3]), name)(6))
    assert len(found) == len(ELSEWHERE) - 1  # RNNLinear is Opacus's
    for layer in found:
        nn.init.normal_(layer.weight)
        sums = []
        for rows in (slice(None), slice(0, 1), slice(1, 2), slice(2, 3)):
            source, delivery = ghost(copy.deepcopy(layer), len(x[rows]), clip=1e9)
            source.setup.module(delivered(source, x[rows])).square().sum().backward()
            sums.append(flat(source.sums(delivery)))
        layer(x).square().sum().backward()
        true = flat([p.grad for p in layer.parameters()]).double()
        assert torch.allclose(sums[0], true, rtol=1e-4, atol=1e-4), type(layer).__name__
        assert torch.allclose(sum(sums[1:]), true, rtol=1e-4, atol=1e-4), type(layer).__name__


def test_a_class_that_only_has_the_name_of_one_on_the_list_is_not_on_it():
    other = type("Conv1D", (nn.Module,), {"__module__": "transformers.pytorch_utils"})
    assert layer_kind(other) is None
