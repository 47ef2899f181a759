"""Train with Lightning's Trainer, or Fabric, on two processes: lightning_script.py STRATEGY."""

import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
which = sys.argv[1]


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(64, 8)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.net(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


generator = torch.Generator().manual_seed(1)
data = DataLoader(TensorDataset(torch.randn(32, 64, generator=generator)), batch_size=4)
options = {"accelerator": "cpu", "devices": 2}
if which.startswith("fabric"):
    from lightning.fabric.strategies import DDPStrategy

    backend = "gloo" if which == "fabric on gloo" else "reduction"
    fabric = lightning.Fabric(strategy=DDPStrategy(process_group_backend=backend), **options)
    fabric.launch()
    model = Model()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    wrapped.mark_forward_method("training_step")
    for batch in fabric.setup_dataloaders(data):
        optimizer.zero_grad()
        fabric.backward(wrapped.training_step(batch, 0))
        optimizer.step()
else:
    from lightning.pytorch.strategies import DDPStrategy

    import worker_plugin.integrations.lightning  # noqa: F401

    strategy = {"backend": lambda: DDPStrategy(process_group_backend="reduction")}.get(which, lambda: which)()
    model = Model()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, strategy=strategy, enable_model_summary=False, **quiet, **options
    )
    trainer.fit(model, data)
print(f"weights {model.net.weight.double().sum().item().hex()}\n", end="", flush=True)
