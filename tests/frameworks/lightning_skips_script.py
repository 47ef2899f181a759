"""Train with Lightning, float16 and top-k on two processes, with the callback of docs/fewer-bytes.md.

    lightning_skips_script.py skips | plain

Prints the weights. One of the batches of "skips" overflows, and one has a gradient that the callback finds too large.
"plain" has neither, but has the loss scale that the overflow leaves.
"""

import sys
import warnings

import lightning
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

from worker_plugin.integrations.lightning import ReductionStrategy

warnings.simplefilter("ignore")
has_skips = sys.argv[1] == "skips"


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(64, 8)

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return self.net(batch).float().pow(2).mean()

    def train_dataloader(self) -> DataLoader:
        return DataLoader(batches[self.global_rank :: 2], batch_size=None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Steps(lightning.Callback):
    def on_before_backward(self, trainer, module, loss):
        scale = trainer.precision_plugin.scaler.get_scale()  # of precision="16-mixed"
        trainer.strategy.reduction_state.set_loss_scale(scale)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if not torch.nn.utils.get_total_norm(p.grad for p in module.parameters()) < 100:
            module.zero_grad()
            trainer.strategy.reduction_state.discard_step()


batches = list(torch.randn(8, 8, 64, generator=torch.Generator().manual_seed(1)))
if has_skips:
    for at, factor in ((6, 1e6), (2, 40.0)):
        batches[at:at] = [batches[0] * factor, batches[1] * factor]
scaler = torch.amp.GradScaler("cpu", init_scale=64.0 if has_skips else 32.0)
model = Model()
trainer = lightning.Trainer(
    max_epochs=1,
    strategy=ReductionStrategy(wire_dtype="topk:0.1"),
    plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    accelerator="cpu",
    use_distributed_sampler=False,
    devices=2,
    callbacks=[Steps()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model)
assert scaler.get_scale() == 32.0
print(f"weights {model.net.weight.double().sum().item().hex()}\n", end="", flush=True)
