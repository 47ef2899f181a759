"""Train with Lightning on two processes, with the callback of docs/logging.md: lightning_stats_script.py FOLDER."""

import sys
import warnings

import lightning
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset

import worker_plugin.integrations.lightning  # noqa: F401

warnings.simplefilter("ignore")


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(64, 8)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.net(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Stats(lightning.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        numbers = trainer.strategy.reduction_state.stats()
        module.log_dict({f"reduction/{name}": float(value) for name, value in numbers.items()})


trainer = lightning.Trainer(
    max_epochs=1,
    strategy="reduction",
    accelerator="cpu",
    devices=2,
    callbacks=[Stats()],
    logger=TensorBoardLogger(sys.argv[1]),
    log_every_n_steps=1,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=4))
