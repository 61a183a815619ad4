"""States that travel through a file, as those of a checkpoint do."""

import io
from typing import Any

import torch


def saved_and_loaded(state: Any, weights_only: bool = True) -> Any:
    """What comes back from a file; by default through the loader that runs no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)
