"""SimCLR with lightly's transform and head, trained with FlatNCE on the digits of scikit-learn.

One line differs from the same script with lightly's NTXentLoss: the criterion.
"""

import timm
import torch
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms.simclr_transform import SimCLRTransform
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

from flatnce import Monitor
from flatnce.integrations.lightly import FlatNCELoss


def encoder():
    """A small residual network of timm and lightly's projection head."""
    backbone = timm.create_model("test_resnet", num_classes=0)
    return nn.Sequential(backbone, SimCLRProjectionHead(backbone.num_features, 128, 64))


def digits(count, transform):
    """Two views of each digit."""
    pictures = (load_digits().images[:count] * (255 / 16)).astype("uint8")
    return [transform(Image.fromarray(picture).convert("RGB")) for picture in pictures]


def main(count=128, epochs=4):
    torch.manual_seed(0)
    model = encoder()
    # A mirrored digit is no digit, and these have no colour.
    transform = SimCLRTransform(
        input_size=32, min_scale=0.5, gaussian_blur=0.0, hf_prob=0.0, cj_prob=0.0
    )
    criterion = FlatNCELoss(temperature=0.1)  # was: NTXentLoss(temperature=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = Monitor()
    for epoch in range(epochs):
        loader = DataLoader(digits(count, transform), batch_size=32, shuffle=True, drop_last=True)
        for first, second in loader:
            loss = criterion(model(first), model(second))
            monitor.update(criterion.last)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = monitor.compute()
        print(f"epoch {epoch}: loss {found['loss']:.3f}, ESS {found['ess']:.2f}")
    return monitor.history


if __name__ == "__main__":
    main()
