"""Scripts that are one small program with some of its parts exchanged."""

from textwrap import dedent, indent

PROGRAM = """
import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, images, labels, table, texts
{imports}
loader = {loader}
{model}
optimizer = {optimizer}
privacy_engine = PrivacyEngine({engine})
{private} = privacy_engine.{make}(
    module=model, optimizer=optimizer, data_loader=loader, {options}
)
{before}
for epoch in range({epochs}):
{each_epoch}
    for {batch} in {parts}:
        optimizer.zero_grad()
{batch_before}
        loss = {loss}
        loss.backward()
{before_step}
        optimizer.step()
{after_step}
{after_epoch}
epsilon = privacy_engine.get_epsilon(delta=1e-3)
{end}
"""
PARTS = {
    "loader": "table(shuffle=True)",
    "model": "model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))",
    "optimizer": "torch.optim.SGD(model.parameters(), lr=0.1)",
    "private": "model, optimizer, loader",
    "make": "make_private",
    "options": "noise_multiplier=1.0, max_grad_norm=1.0",
    "epochs": "1",
    "batch": "x, y",
    "parts": "loader",
    "loss": "F.cross_entropy(model(x), y)",
}
#: Parts that stand within the loop over epochs, or over batches.
INDENTED = dict.fromkeys(("each_epoch", "after_epoch"), 4) | dict.fromkeys(
    ("batch_before", "before_step", "after_step"), 8
)
TARGET = {
    "make": "make_private_with_epsilon",
    "options": "target_epsilon=8.0, target_delta=1e-3, epochs=1, max_grad_norm=1.0",
}
TWO_EPOCHS = TARGET | {"options": TARGET["options"].replace("epochs=1", "epochs=2"), "epochs": "2"}
ADAM = {"optimizer": "torch.optim.AdamW(model.parameters(), lr=1e-2)"}

GPT2 = ADAM | {
    "loader": "DataLoader(rows, batch_size=16, shuffle=True)",
    "model": """\
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)).train()""",
}

BERT = {
    "imports": """\
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(
    vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=LENGTH, num_labels=3,
)""",
    "batch": "batch",
    "loss": "model(**batch).loss",
}

#: In the style of Opacus's tutorials and examples; Opacus runs them too.
TUTORIALS = {
    "accountant": {
        "loader": "images(drop_last=True)",
        "model": """\
            model = nn.Sequential(
                nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 4, 1, 0), nn.Flatten()
            )""",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))",
        "loss": "nn.BCEWithLogitsLoss()(model(x).squeeze(1), (y > 0).float())",
        "after_step": "assert privacy_engine.accountant.get_epsilon(delta=1e-3) > 0",
        "end": "assert len(privacy_engine.accountant) > 0",  # steps here, entries of its history in Opacus
    },
    "adam_forever": {
        "optimizer": "torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)",
        "options": "noise_multiplier=1.2, max_grad_norm=1.0",
        "epochs": "10**9",
        "after_epoch": "if privacy_engine.get_epsilon(1e-3) >= 3.5: break",
    },
    "expanded_weights": {
        "options": "noise_multiplier=1.0, max_grad_norm=1.0, loss_reduction='sum', "
        'grad_sample_mode="ew", poisson_sampling=False',
        "loss": "F.cross_entropy(model(x), y, reduction='sum')",
    },
    "fixed_order": TWO_EPOCHS
    | {"options": TWO_EPOCHS["options"] + ", poisson_sampling=False", "after_step": "assert len(x) == 16"},
    "functorch": {
        "model": "model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))",
        "options": "noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode='functorch'",
    },
    "ghost": {
        "imports": "criterion = nn.CrossEntropyLoss(reduction='mean')",
        "private": "model, optimizer, criterion, loader",
        "options": "criterion=criterion, noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode='ghost'",
        "loss": "criterion(model(x), y)",
        "after_step": "value = loss.item()",
    },
    "memory_manager": TARGET
    | {
        "imports": "from opacus.utils.batch_memory_manager import BatchMemoryManager",
        "loader": "table(batch_size=24)",
        "before": """\
            manager = BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer)
            memory_safe_data_loader = manager.__enter__()""",
        "parts": "memory_safe_data_loader",
        "end": "manager.__exit__(None, None, None)",
    },
    "metrics": TWO_EPOCHS
    | {
        "model": """\
            def network():
                return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
            model, test_loader = network(), table(20)""",
        "each_epoch": "model.train()",
        "after_epoch": """\
            model.eval()
            with torch.no_grad():
                right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_loader)
            history = right / len(test_loader.dataset), privacy_engine.get_epsilon(1e-3)""",
        "end": "network().load_state_dict(model._module.state_dict())",
    },
    "mnist": {
        "loader": "images(shuffle=True)",
        "model": """\
            model = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
            )""",
        "engine": "secure_mode=False",
        "epochs": "2",
        "each_epoch": "model.train()",
    },
    "noise_scheduler": {
        "imports": "from opacus.schedulers import ExponentialNoise",
        "before": "noise_scheduler = ExponentialNoise(optimizer, gamma=0.9)",
        "epochs": "2",
        "after_epoch": "noise_scheduler.step()",
    },
    "per_layer": {
        "options": "noise_multiplier=1.0, clipping='per_layer', max_grad_norm=[0.5, 0.5, 0.5, 0.5]"
    },
    "rdp": TARGET | {"engine": "accountant='rdp'"},
    "scheduler": {
        "optimizer": "torch.optim.SGD(model.parameters(), lr=0.4)",
        "before": "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)",
        "epochs": "2",
        "after_epoch": "scheduler.step()",
        "end": 'assert abs(optimizer.param_groups[0]["lr"] - 0.1) < 1e-9',
    },
    "virtual_steps": TARGET
    | {
        "options": TARGET["options"] + ", poisson_sampling=False",
        "before": "parts = loader",
        "batch": "i, (x, y)",
        "parts": "enumerate(parts)",
        "batch_before": "optimizer.signal_skip_step(do_skip=i % 2 == 0)",
    },
    "workers": {
        "loader": "table(50, drop_last=True, num_workers=1, shuffle=True)",
        "optimizer": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "before": "assert len(loader) == 3",
    },
    "char_lstm": TWO_EPOCHS
    | {
        "imports": """\
            from opacus.layers import DPLSTM

            class CharNN(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding = nn.Embedding(WORDS, 6)
                    self.lstm = DPLSTM(6, 8, num_layers=1, bidirectional=False, batch_first=True)
                    self.out_layer = nn.Linear(8, 3)

                def forward(self, x):
                    return self.out_layer(self.lstm(self.embedding(x))[0][:, -1])""",
        "loader": "texts(shuffle=True)",
        "model": "model = CharNN()",
        "end": "with torch.no_grad():\n    accuracy = model(loader.dataset[0][0][None]).argmax(1)",
    },
    "grad_sampler": {
        "imports": """\
            from opacus.grad_sample import register_grad_sampler

            class Scale(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = nn.Parameter(torch.ones(6))

                def forward(self, x):
                    return x * self.weight

            @register_grad_sampler(Scale)
            def sample(layer, activations, backprops):
                return {layer.weight: activations[0] * backprops}""",
        "model": "model = nn.Sequential(Scale(), nn.Linear(6, 3))",
    },
    "imdb": {
        "imports": """\
            class SampleNet(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.emb, self.pool = nn.Embedding(WORDS, 8), nn.AdaptiveAvgPool1d(1)
                    self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 3)

                def forward(self, x):
                    x = self.pool(self.emb(x).transpose(1, 2)).squeeze(2)
                    return self.fc2(torch.relu(self.fc1(x)))

            def collate(batch):
                x = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True, padding_value=0)
                return x, torch.stack([y for _, y in batch])""",
        "loader": "DataLoader(texts().dataset, batch_size=16, collate_fn=collate)",
        "model": "model = SampleNet().train()",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=0.02)",
        "options": "noise_multiplier=0.6, max_grad_norm=0.1",
        "loss": "F.cross_entropy(model(x).squeeze(1), y)",
        "after_step": "value = loss.item()",
    },
    "lora": {
        "imports": """\
            class LoRALinear(nn.Module):
                def __init__(self, base, rank=2):
                    super().__init__()
                    self.base = base.requires_grad_(False)
                    self.lora_A = nn.Linear(base.in_features, rank, bias=False)
                    self.lora_B = nn.Linear(rank, base.out_features, bias=False)
                    nn.init.zeros_(self.lora_B.weight)

                def forward(self, x):
                    return self.base(x) + self.lora_B(self.lora_A(x))""",
        "model": "model = nn.Sequential(LoRALinear(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))",
        "optimizer": "torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)",
    },
    "resnet": {
        "imports": """\
            from opacus.validators import ModuleValidator

            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

                def forward(self, x):
                    return x + torch.relu(self.bn(self.conv(x)))""",
        "loader": "images(channels=3)",
        "model": """\
            model = nn.Sequential(
                nn.Conv2d(3, 4, 3), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
            )
            errors = ModuleValidator.validate(model, strict=False)
            model = ModuleValidator.fix(model)
            ModuleValidator.validate(model, strict=True)""",
        "optimizer": "torch.optim.RMSprop(model.parameters(), lr=1e-3)",
        "make": "make_private_with_epsilon",
        "options": "epochs=1, target_epsilon=50.0, target_delta=1e-3, max_grad_norm=1.2",
        "before": "sigma = optimizer.noise_multiplier",
    },
    "bert_frozen": {
        "imports": """\
            class Layer(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
                    self.norm, self.output = nn.LayerNorm(8), nn.Linear(8, 8)

                def forward(self, x):
                    scores = self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5
                    return self.norm(x + self.output(scores.softmax(-1) @ self.value(x)))

            class Bert(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.words, self.positions = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
                    self.layers = nn.ModuleList([Layer(), Layer()])
                    self.classifier = nn.Linear(8, 3)

                def forward(self, input_ids, labels):
                    x = self.words(input_ids) + self.positions(torch.arange(LENGTH))
                    for layer in self.layers:
                        x = layer(x)
                    logits = self.classifier(x[:, 0])
                    return F.cross_entropy(logits, labels), logits""",
        "loader": "texts()",
        "model": """\
            model = Bert().train().requires_grad_(False)
            for part in (model.layers[-1], model.classifier):
                part.requires_grad_(True)""",
        "optimizer": "torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)",
        "make": "make_private_with_epsilon",
        "options": "target_delta=1e-3, target_epsilon=7.5, epochs=1, max_grad_norm=0.1",
        "loss": "model(input_ids=x, labels=y)[0]",
    },
}
#: As scripts are written today.
TODAY = {
    "accumulation": {
        "loader": "table(batch_size=8, shuffle=True)",
        "before": "accumulation_steps = 2\noptimizer.zero_grad()",
        "epochs": "0",
        "end": """\
            for i, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x), y) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            epsilon = privacy_engine.get_epsilon(1e-3)""",
    },
    "autocast": ADAM
    | {
        "imports": "criterion, correct = nn.CrossEntropyLoss(label_smoothing=0.1), 0",
        "loader": "table(shuffle=True, drop_last=True)",
        "model": """\
            model = nn.Sequential(
                nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
            )""",
        "epochs": "2",
        "each_epoch": "model.train()\nrunning_loss = 0.0",
        "batch_before": """\
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                output = model(x)
                loss = criterion(output, y)""",
        "loss": "loss",
        "after_step": """\
            running_loss += loss.item() * len(x)
            correct += (output.argmax(1) == y).sum().item()""",
        "after_epoch": """\
            model.eval()
            with torch.no_grad():
                hits = sum((model(x).argmax(1) == y).sum().item() for x, y in table())""",
    },
    "averaged": {
        "imports": "from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn",
        "model": """\
            model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
            ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))""",
        "epochs": "2",
        "after_step": "ema_model.update_parameters(model)",
        "after_epoch": """\
            with torch.no_grad():
                hits = sum((ema_model(x).argmax(1) == y).float().sum().item() for x, y in table())""",
    },
    "class_weights": {
        "imports": "criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))",
        "loss": "criterion(model(x), y)",
    },
    "clip_and_log": {
        "optimizer": """\
            torch.optim.Adam(model.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=7)""",
        "epochs": "2",
        "before_step": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "after_step": """\
            scheduler.step()
            norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
            log = {"loss": loss.item(), "lr": scheduler.get_last_lr()[0], **norms}""",
    },
    "compiled": ADAM
    | {"model": PARTS["model"].replace("model = ", "model = torch.compile(") + ", backend='eager')"},
    "compiled_after": ADAM | {"before": "model = torch.compile(model, backend='eager')"},
    "contrastive": {
        "loader": "DataLoader(TensorDataset(*torch.randn(2, 48, 6)), batch_size=16, shuffle=True)",
        "batch_before": "za, zb = F.normalize(model(x), dim=1), F.normalize(model(y), dim=1)",
        "loss": "F.cross_entropy(za @ zb.T / 0.1, torch.arange(len(x)))",
    },
    "distillation": ADAM
    | {
        "model": PARTS["model"]
        + """
teacher = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).eval()
T, alpha = 2.0, 0.5""",
        "batch_before": """\
            with torch.no_grad():
                teacher_logits = teacher(x)
            logits = model(x)
            there, here = F.softmax(teacher_logits / T, dim=1), F.log_softmax(logits / T, dim=1)
            soft = F.kl_div(here, there, reduction="batchmean")""",
        "loss": "alpha * T * T * soft + (1 - alpha) * F.cross_entropy(logits, y)",
    },
    "focal": {
        "imports": """\
            class FocalLoss(nn.Module):
                def __init__(self, alpha, gamma=2.0):
                    super().__init__()
                    self.register_buffer("alpha", alpha)
                    self.gamma = gamma

                def forward(self, logits, target):
                    ce = F.cross_entropy(logits, target, reduction="none")
                    return (self.alpha[target] * (1 - torch.exp(-ce)) ** self.gamma * ce).mean()

            criterion = FocalLoss(torch.tensor([0.25, 0.5, 1.0]))""",
        "loss": "criterion(model(x), y)",
    },
    "grad_scaler": {
        "imports": 'scaler = torch.amp.GradScaler("cpu")',
        "epochs": "0",
        "end": """\
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            epsilon = privacy_engine.get_epsilon(1e-3)""",
    },
    "l2_in_the_loss": {
        "batch_before": "l2 = sum(p.pow(2).sum() for p in model.parameters())",
        "loss": "F.cross_entropy(model(x), y) + 1e-3 * l2",
    },
    "mixup": {
        "batch_before": """\
            lam, index = 0.8, torch.randperm(len(x))
            output = model(lam * x + (1 - lam) * x[index])""",
        "loss": "lam * F.cross_entropy(output, y) + (1 - lam) * F.cross_entropy(output, y[index])",
    },
    "multi_label": {
        "imports": """\
            x = torch.randn(48, 6)
            criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 2.0, 3.0]))""",
        "loader": "DataLoader(TensorDataset(x, (x[:, :3] > 0.5).float()), batch_size=16, shuffle=True)",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)",
        "batch_before": "model.zero_grad()\nlogits = model(x)",
        "loss": "criterion(logits, y)",
        "after_step": "f1 = ((logits.sigmoid() > 0.5).float() * y).sum().item()",
    },
    "regression": {
        "imports": "x = torch.randn(48, 6)",
        "loader": "DataLoader(TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True)",
        "model": "criterion = nn.MSELoss()\n" + PARTS["model"].replace("8, 3", "8, 1"),
        "loss": "criterion(model(x), y)",
    },
    "resume": {
        "imports": "import io\nfile = io.BytesIO()",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=1e-2)",
        "epochs": "2",
        "each_epoch": """\
            if epoch:
                file.seek(0)
                saved = torch.load(file)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])""",
        "after_epoch": "if not epoch:\n"
        '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)',
    },
    "stream": {
        "imports": """\
            class Stream(torch.utils.data.IterableDataset):
                def __iter__(self):
                    yield from table().dataset
            """,
        "loader": "DataLoader(Stream(), batch_size=16)",
    },
    "two_optimizers": {
        "model": """\
            trunk, head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
            model = nn.Sequential(trunk, head)""",
        "optimizer": "torch.optim.SGD(trunk.parameters(), lr=0.1)\n"
        "head_optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)",
        "batch_before": "head_optimizer.zero_grad()",
        "after_step": "head_optimizer.step()",
    },
    "unfreezing": {
        "model": """\
            trunk, head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
            model = nn.Sequential(trunk, head)
            trunk.requires_grad_(False)""",
        "epochs": "2",
        "each_epoch": "if epoch == 1:\n    trunk.requires_grad_(True)",
    },
    "weighted_sampler": {
        "imports": """\
            from torch.utils.data import WeightedRandomSampler
            dataset = table().dataset
            counts = torch.bincount(dataset.tensors[1], minlength=3)
            sampler = WeightedRandomSampler((1 / counts)[dataset.tensors[1]], len(dataset))""",
        "loader": "DataLoader(dataset, batch_size=16, sampler=sampler)",
    },
    "autoencoder": {
        "imports": """\
            class VAE(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(4, 64)

                def forward(self, x):
                    mu, logvar = self.encoder(x.flatten(1)).chunk(2, dim=1)
                    z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
                    return torch.sigmoid(self.decoder(z)), mu, logvar""",
        "loader": "images(shuffle=True)",
        "model": "model = VAE()",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=1e-3)",
        "batch_before": """\
            recon, mu, logvar = model(x)
            bce = F.binary_cross_entropy(recon, x.flatten(1).sigmoid(), reduction="sum")
            kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())""",
        "loss": "(bce + kl) / x.size(0)",
    },
    "gpt2_padded": GPT2
    | {
        "imports": """\
            def example(x, length):
                mask = (torch.arange(LENGTH) < length).long()
                ids = x * mask
                return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

            rows = [example(x, 2 + i % (LENGTH - 1)) for i, (x, _) in enumerate(texts().dataset)]""",
        "model": GPT2["model"].replace("n_head=2", "n_head=2, tie_word_embeddings=False"),
        "epochs": "2",
        "batch": "batch",
        "loss": "model(**batch).loss",
    },
    "gpt2_shifted": GPT2
    | {
        "imports": "rows = [x.masked_fill(torch.arange(LENGTH) > 1 + i % 5, 0) "
        "for i, (x, _) in enumerate(texts().dataset)]",
        "batch": "ids",
        "batch_before": """\
            logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
            shift_logits, shift_labels = logits[..., :-1, :].contiguous(), ids[..., 1:].contiguous()""",
        "loss": "F.cross_entropy(shift_logits.view(-1, WORDS), shift_labels.view(-1), ignore_index=0)",
    },
    "peft_lora": GPT2
    | {
        "imports": "rows = [{'input_ids': x, 'labels': x} for x, _ in texts().dataset]",
        "model": GPT2["model"]
        + """
from peft import LoraConfig, get_peft_model
options = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
model = get_peft_model(model.to(torch.bfloat16), options).train()""",
        "optimizer": "torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)",
        "batch": "batch",
        "loss": "model(**batch).loss",
    },
    "siamese": {
        "imports": """\
            class Siamese(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

                def forward(self, *inputs):
                    return tuple(nn.functional.normalize(self.encoder(x), dim=1) for x in inputs)""",
        "loader": "DataLoader(TensorDataset(*torch.randn(3, 48, 6)), batch_size=16, shuffle=True)",
        "model": "model = Siamese()",
        "batch": "triplet",
        "loss": "nn.TripletMarginLoss(margin=0.5)(*model(*triplet))",
    },
    "two_heads": {
        "imports": """\
            rows = [{"x": x, "kind": y, "value": x.sum(), "id": f"row-{i}"}
                    for i, (x, y) in enumerate(table().dataset)]

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
                    self.kind, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

                def forward(self, x):
                    h = self.trunk(x)
                    return {"kind": self.kind(h), "value": self.value(h).squeeze(-1)}""",
        "loader": "DataLoader(rows, batch_size=16, shuffle=True)",
        "model": "model = Net()",
        "optimizer": """\
            torch.optim.Adam(
                [{"params": model.trunk.parameters(), "lr": 1e-3},
                 {"params": [*model.kind.parameters(), *model.value.parameters()]}], lr=1e-2)""",
        "batch": "batch",
        "batch_before": """\
            out = model(batch["x"])
            value = F.smooth_l1_loss(out["value"], batch["value"])""",
        "loss": "F.cross_entropy(out['kind'], batch['kind']) + 0.5 * value",
    },
    "plateau": {
        "imports": "import copy\nbest, best_state, bad = float('inf'), None, 0",
        "loader": "images(shuffle=True)",
        "model": """\
            public = torch.randn(32, 1, 8, 8)
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
            criterion = nn.CrossEntropyLoss()""",
        "optimizer": """\
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)""",
        "epochs": "4",
        "each_epoch": "model.train()",
        "loss": "criterion(model(x), y)",
        "after_epoch": """\
            model.eval()
            with torch.no_grad():
                val_loss = criterion(model(public), labels(public)).item()
            scheduler.step(val_loss)
            if val_loss < best:
                best, best_state, bad = val_loss, copy.deepcopy(model.state_dict()), 0
            else:
                bad += 1
                if bad == 2:
                    break""",
        "end": "model.load_state_dict(best_state)",
    },
    "packed": {
        "imports": """\
            import random
            from opacus.layers import DPLSTM
            from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

            class Names(torch.utils.data.Dataset):
                def __init__(self):
                    self.rows = [(x[: 2 + i % 5], y) for i, (x, y) in enumerate(texts().dataset)]

                def __len__(self):
                    return len(self.rows)

                def __getitem__(self, i):
                    x, y = self.rows[i]
                    return (x.flip(0) if random.random() < 0.5 else x), y

            def collate(batch):
                xs, ys = zip(*batch, strict=True)
                return pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.stack(ys)

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding, self.lstm = nn.Embedding(WORDS, 8), DPLSTM(8, 8, batch_first=True)
                    self.fc = nn.Linear(8, 3)

                def forward(self, x, n):
                    x = self.embedding(x)
                    packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
                    _, (h, _) = self.lstm(packed)
                    return self.fc(h[-1])""",
        "loader": "DataLoader(Names(), batch_size=16, shuffle=True, collate_fn=collate)",
        "model": "model = Net()",
        "optimizer": "torch.optim.Adam(model.parameters(), lr=1e-2)",
        "batch": "x, lengths, y",
        "loss": "F.cross_entropy(model(x, lengths), y)",
    },
    "bert_classification": BERT
    | {
        "imports": BERT["imports"]
        + """
from transformers import get_linear_schedule_with_warmup

rows = [
    {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y, "text": f"text {i}"}
    for i, (x, y) in enumerate(texts().dataset)
]

def collate(batch):
    names = "input_ids", "attention_mask", "labels"
    return {key: torch.stack([row[key] for row in batch]) for key in names}""",
        "loader": "DataLoader(rows, batch_size=16, shuffle=True, collate_fn=collate)",
        "model": """\
            model = BertForSequenceClassification(config)
            model.bert.embeddings.requires_grad_(False)
            model.train()""",
        "optimizer": """\
            torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
            scheduler = get_linear_schedule_with_warmup(optimizer, 1, 2 * len(loader))""",
        "epochs": "2",
        "after_step": "scheduler.step()\noptimizer.zero_grad(set_to_none=True)",
    },
    "peft_bf16": BERT
    | {
        "imports": BERT["imports"]
        + """
from peft import LoraConfig, get_peft_model

rows = [{"input_ids": x, "labels": y} for x, y in texts().dataset]""",
        "loader": "DataLoader(rows, batch_size=16, shuffle=True)",
        "model": """\
            options = LoraConfig(
                r=2, lora_alpha=4, target_modules=["query", "value"], modules_to_save=["classifier"]
            )
            base = BertForSequenceClassification(config).to(torch.bfloat16)
            model = get_peft_model(base, options).train()""",
        "optimizer": "torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)",
    },
}


def program(name):
    """Return the text of a variation."""
    given = PARTS | (TUTORIALS | TODAY)[name]
    slots = [part.split("}")[0] for part in PROGRAM.split("{")[1:]]
    parts = {slot: indent(dedent(given.get(slot, "")), " " * INDENTED.get(slot, 0)) for slot in slots}
    return PROGRAM.format(**parts)
