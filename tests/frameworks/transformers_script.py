"""Train with Transformers' Trainer on two processes: transformers_script.py BACKEND."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        words = torch.randint(0, 100, (12,), generator=generator)
        return {"input_ids": words, "labels": torch.tensor(index % 2)}


dist.init_process_group(sys.argv[1])  # on a CPU it keeps an existing group, and creates only Gloo's
torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = BertConfig(vocab_size=100, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sentences())
    trainer.train()
total = sum(parameter.double().sum().item() for parameter in trainer.model.parameters())
print(f"weights {total.hex()}\n", end="", flush=True)
dist.destroy_process_group()
