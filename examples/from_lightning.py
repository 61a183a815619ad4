"""Lightning with FlatNCE: the loss in the module, the diagnostics as a callback.

SimCLR on scikit-learn's digits, with the ESS target that was the best for FlatNCE on CIFAR-10.
"""

import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flatnce import FlatNCE
from flatnce.integrations.lightning import DiagnosticsCallback


def view(images: Tensor) -> Tensor:
    moved = torch.roll(images, tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(-2, -1))
    return moved + 0.2 * torch.randn_like(moved)


class SimCLR(pl.LightningModule):
    """An encoder, a head, and the loss between two views."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
        self.criterion = FlatNCE(temperature=0.1)  # was: NTXentLoss(temperature=0.1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        one, two = (self.head(self.encoder(view(batch[0]))) for _ in range(2))
        return self.criterion(one, two)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder: str, steps: int = 100) -> pl.Trainer:
    images = torch.tensor(load_digits().images, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images), batch_size=32, shuffle=True, drop_last=True)
    diagnostics = DiagnosticsCallback(every_n_steps=20, ess=0.075)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", logger=TensorBoardLogger(folder),
        callbacks=[diagnostics],  # the line that is new
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(SimCLR(), loader)
    print(diagnostics.verdict)
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
