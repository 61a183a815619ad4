"""A few steps of Lightning's trainer, of either namespace, with a loss between two noisy views."""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def two_views(model: Any, x: Tensor) -> Tensor:
    """The loss between two noisy views of a batch."""
    return model.loss_fn(*(model.body(x + 0.1 * torch.randn_like(x)) for _ in range(2)))


def fit(pl: ModuleType, folder: Path, loss_fn: Any, *callbacks: Any, **options: Any) -> Any:
    """Four steps, unless told otherwise, resumed where the folder has a checkpoint."""

    class Small(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.loss_fn = nn.Linear(6, 4), loss_fn

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return two_views(self, batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    usual = {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False}
    usual |= {"enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    usual |= {"default_root_dir": str(folder), "callbacks": list(callbacks)}
    trainer, saved = pl.Trainer(**(usual | options)), folder / "saved.ckpt"
    loader = DataLoader(TensorDataset(torch.randn(24, 6)), batch_size=6)
    trainer.fit(Small(), loader, ckpt_path=str(saved) if saved.exists() else None)
    return trainer
