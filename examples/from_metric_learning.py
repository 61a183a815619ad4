"""Digits embedded with pytorch-metric-learning's sampler, miner and reducer, and FlatNCE.

One line differs from the same script with its NTXentLoss: the loss.
"""

import numpy as np
import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer
from pytorch_metric_learning.samplers import MPerClassSampler
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flatnce.integrations.metric_learning import FlatNCELoss


def nearest_is_right(z, labels):
    """How often the nearest other row has the same label."""
    z = nn.functional.normalize(z, dim=1)
    nearest = (z @ z.T).fill_diagonal_(-1).argmax(dim=1)
    return (labels[nearest] == labels).float().mean().item()


def main(epochs=3):
    torch.manual_seed(0)
    np.random.seed(0)  # the library's sampler draws from it
    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    # Digits below five are trained on; the others are never seen.
    seen = labels < 5
    rows = TensorDataset(images[seen], labels[seen])
    sampler = MPerClassSampler(labels[seen], m=4, batch_size=20, length_before_new_iter=len(rows))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    miner = MultiSimilarityMiner(epsilon=0.5)
    loss_fn = FlatNCELoss(temperature=0.1, reducer=AvgNonZeroReducer())  # was: NTXentLoss(...)
    history = []
    for epoch in range(epochs):
        for batch, names in DataLoader(rows, batch_size=20, sampler=sampler):
            z = model(batch)
            loss = loss_fn(z, names, miner(z, names))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        with torch.no_grad():
            right = nearest_is_right(model(images[~seen]), labels[~seen])
        print(f"epoch {epoch}: loss {loss:.3f}, right on unseen digits {right:.3f}")
    return history, right


if __name__ == "__main__":
    main()
