"""Fine-tuning by ghost clipping, with PEFT and in full: the sum is that of a loop over single rows."""

import copy
import importlib

import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch.sources.ghost.layers import ELSEWHERE, layer_kind
from anechoic.torch.sources.ghost.source import _ASKING
from tests.slow.torch.frameworks.shapes import WORDS, drawn, hugging
from tests.torch.sources.ghost_setting import delivered, flat, ghost
from tests.torch.sums import check_release

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


def tokens(rows=5):
    pytest.importorskip("transformers")
    found = torch.randint(1, WORDS, (2, rows, LENGTH), generator=drawn(3))
    return found[0], found[1]


def loss(model, words, labels, mask=None):
    """An ignored label counts as 0 in a mean over all of them, whose number is public."""
    kept = torch.ones_like(words) if mask is None else mask
    logits = model(input_ids=words, attention_mask=kept).logits.transpose(1, 2)
    return nn.functional.cross_entropy(logits, labels, reduction="none").mean()


def check(make, *rows, clip=CLIP, bound=2e-3):
    check_release(make, rows, loss, mode="ghost", clip=clip, noise=1e-9, bound=bound)


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
    check(CASES[name], *tokens(), clip=clip, bound=0.05 if "bfloat16" in name else 2e-3)


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
    check(attending(name, kind), x, y, mask)


@pytest.mark.parametrize("name", TARGETS)
def test_a_mask_of_four_axes_is_taken_as_it_is(name):
    x, y = tokens()
    mask = PADDED["right"][:, None, None, :]
    if name != "BERT":
        mask = mask & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    check(attending(name, "sdpa"), x, y, mask)


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

    check(make, x, y, places)


def test_words_that_may_be_padding_and_no_mask():
    x, y = tokens()
    x[2, -1] = 0  # GPT-2 asks whether any row ends with this word, to warn

    def make():
        return Given(lambda: adapted("GPT-2", torch.float32), lambda given: {})

    check(make, x, y)


def test_a_decision_of_the_models_own_is_refused_with_its_remedy():
    def make():
        return Given(
            lambda: adapted("GPT-2", torch.float32),
            lambda given: {} if given.all() else {"attention_mask": given},
        )

    with pytest.raises(GuaranteeError, match=r"one of shape \(rows, 1, queries, keys\) as it is"):
        check(make, *tokens(), PADDED["right"].long())


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
        check(lambda: adapted("Llama", torch.float32, **options), *tokens())


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
