"""A few steps of Lightning's and Hugging Face's trainers, with a loss between two noisy views."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

# Lightning's own warnings, about torch and about short runs.
LIGHTNING_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
]
LOGGED = ("ess", "gain", "mi", "mi_ceiling", "temperature")


def read_board(folder: Path) -> Any:
    """The events that a trainer wrote for TensorBoard, anywhere in a folder."""
    host = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = next(folder.rglob("*tfevents*")).parent
    return host.EventAccumulator(str(events)).Reload()


def two_views(body: nn.Module, x: Tensor) -> list[Tensor]:
    """The embeddings of two noisy views of a batch."""
    return [body(x + 0.1 * torch.randn_like(x)) for _ in range(2)]


def fit(pl: ModuleType, folder: Path, loss_fn: Any, *callbacks: Any, **options: Any) -> Any:
    """Four steps of Lightning, unless told otherwise, resumed if the folder has a checkpoint."""

    class Small(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.loss_fn = nn.Linear(6, 4), loss_fn

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.loss_fn(*two_views(self.body, batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    usual = {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False}
    usual |= {"enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    usual |= {"default_root_dir": str(folder), "callbacks": list(callbacks)}
    trainer, saved = pl.Trainer(**(usual | options)), folder / "saved.ckpt"
    loader = DataLoader(TensorDataset(torch.randn(24, 6)), batch_size=6)
    trainer.fit(Small(), loader, ckpt_path=str(saved) if saved.exists() else None)
    return trainer


class Small(nn.Module):
    """A model of Hugging Face's trainer, with one or two losses."""

    def __init__(self, loss_fn: nn.Module | None, other: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.loss_fn, self.other = loss_fn, other

    def forward(self, x: Tensor, **_: Tensor) -> dict[str, Tensor]:
        views = two_views(self.body, x)
        loss = self.loss_fn(*views)
        return {"loss": loss if self.other is None else loss + self.other(*views)}


def trainer_of(
    kind: type, folder: Path, model: Small, arguments: dict, data: Any = None, **options: Any
) -> Any:
    """A trainer of Hugging Face: four steps, unless told otherwise."""
    usual = {"max_steps": 4, "per_device_train_batch_size": 6, "report_to": "none"}
    usual |= {"use_cpu": True, "disable_tqdm": True}
    host = importlib.import_module("transformers")
    chosen = host.TrainingArguments(str(folder), **(usual | arguments))
    rows = [{"x": x} for x in (torch.randn(24, 6) if data is None else data)]
    return kind(model, chosen, None, rows, eval_dataset=rows, **options)
