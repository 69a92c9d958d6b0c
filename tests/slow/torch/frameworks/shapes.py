"""Models that people train, small and random, each with a batch of rows of unequal lengths and a loss."""

import torch
import torch.nn.functional as F

ROWS, LENGTH, WORDS = 10, 7, 20


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(rows=ROWS, length=LENGTH, seed=0):
    return torch.randint(1, WORDS, (rows, length), generator=drawn(seed))


def padded():
    """Sentences of unequal lengths: masks end early, and labels there are -100; the first are whole."""
    lengths = torch.tensor([LENGTH, LENGTH, *(2 + i % (LENGTH - 2) for i in range(ROWS - 2))])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    words = tokens() * mask
    return {"input_ids": words, "attention_mask": mask, "labels": words.masked_fill(mask == 0, -100)}


def inside(model, batch):
    return model(**batch).loss


def by_row(logits, labels):
    """The mean of each row's tokens, then the mean of rows."""
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return (losses.sum(1) / (labels != -100).sum(1)).mean()


def outside(model, batch):
    labels = batch["labels"]
    rest = {name: value for name, value in batch.items() if name != "labels"}
    return by_row(model(**rest).logits, labels)


def outside_t5(model, batch):
    labels = batch["labels"]
    rest = {name: value for name, value in batch.items() if name != "labels"}
    before = F.pad(labels.clamp(min=0)[:, :-1], (1, 0))
    return by_row(model(**rest, decoder_input_ids=before).logits, labels)


# -- transformers --------------------------------------------------------------------------------------


def hugging(name, **options):
    def make():
        import transformers

        config, model = {
            "BERT": ("BertConfig", "BertForMaskedLM"),
            "GPT-2": ("GPT2Config", "GPT2LMHeadModel"),
            "T5": ("T5Config", "T5ForConditionalGeneration"),
            "Llama": ("LlamaConfig", "LlamaForCausalLM"),
            "Mixtral": ("MixtralConfig", "MixtralForCausalLM"),
        }[name]
        sizes = {
            "BERT": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
            "GPT-2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12},
            "T5": {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2},
            "Llama": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
            "Mixtral": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
        }[name]
        own = {
            "BERT": {"intermediate_size": 16, "max_position_embeddings": 12, "type_vocab_size": 1,
                     "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
            "GPT-2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
            "T5": {"dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0},
            "Llama": {"num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 12},
            "Mixtral": {"num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 12,
                        "num_local_experts": 4, "num_experts_per_tok": 2},
        }[name]  # fmt: skip
        given = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        made = getattr(transformers, config)(**{**given, **sizes, **own, **options})
        return getattr(transformers, model)(made)

    return make


def lora(name, targets):
    def make():
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=2, target_modules=targets, init_lora_weights="gaussian", lora_dropout=0.0)
        model = get_peft_model(hugging(name)(), config)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "lora_B" in key:
                    p.normal_(generator=drawn(5))
        return model

    return make


def shapes():
    """{name: (make the model, tensors of the rows, loss of (model, tensors) that is a mean over rows)}"""
    found = {}
    for name in ("BERT", "GPT-2", "T5", "Llama", "Mixtral"):
        found[f"{name}, loss inside"] = (hugging(name), padded(), inside)
        found[f"{name}, loss outside"] = (hugging(name), padded(), outside_t5 if name == "T5" else outside)
    # transformers looks for the word of its padding in what comes without a mask; some rows end with it
    found["GPT-2 without a mask"] = (hugging("GPT-2"), {"input_ids": tokens(), "labels": tokens()}, inside)
    ends = {"input_ids": padded()["input_ids"], "labels": tokens()}
    found["GPT-2 without a mask, some rows padded"] = (hugging("GPT-2"), ends, inside)
    found["BERT with eager attention"] = (hugging("BERT", attn_implementation="eager"), padded(), inside)
    found["Mixtral, eager experts"] = (hugging("Mixtral", experts_implementation="eager"), padded(), inside)
    for name, targets in {
        "BERT": ["query", "value"], "GPT-2": ["c_attn"], "Llama": ["q_proj", "v_proj"], "T5": ["q", "v"],
    }.items():  # fmt: skip
        found[f"LoRA on {name}"] = (lora(name, targets), padded(), inside)
    return found
