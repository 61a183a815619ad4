"""Cases from small trainings on real digits, labelled by the fault of the training.

The labels of cases.py follow from the same formulas as the rules. Correct findings there show that
the rules are computed correctly, not that they are useful. Here a training has one known fault,
and the doctor examines the embeddings of fresh views. Any other finding counts as a false alarm,
even if it may be true.
"""

from functools import cache

import torch
from cases import Case
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import dropout, normalize

from flatnce import FlatNCE, InfoNCE

STEPS, BATCH, SHOWN = 200, 128, 256
# A training counts as saturated if InfoNCE's mean over about twenty steps is below this.
NOTHING = 0.02

TRAINED = {
    "trained well, FlatNCE": (),
    "trained well, InfoNCE": (),
    "trained well, warm": (),
    "trained with few negatives": ("too few negatives",),
    "trained too hot": ("temperature too high",),
    "trained too cold": ("temperature too low",),
    "trained without negatives": ("collapsed",),
    "trained through a bottleneck": ("dimensional collapse",),
    "trained without augmentation": ("identical views",),
    "trained until its loss was nothing": ("saturated",),
    "trained on mismatched pairs": ("not learning",),
    "trained, batches with repeated images": ("false negatives",),
    "trained, data with copied rows": ("duplicates",),
}


@cache
def digits():
    return torch.tensor(load_digits().data, dtype=torch.float32) / 16


def views(x, strength):
    """Pixels dropped and noise added, anew at each call."""
    return (
        x if strength == 0 else dropout(x, 0.4 * strength) + 0.2 * strength * torch.randn(x.shape)
    )


def encoder(bottleneck):
    wide = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU()]
    head = [nn.Linear(128, bottleneck)] if bottleneck else []
    return nn.Sequential(*wide, *head, nn.Linear(bottleneck or 128, 64))


def trained(name, seed):
    """Train the named case, and embed two fresh views of images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _trained(name)


def _trained(name):
    strength = {"trained without augmentation": 0.0, "trained until its loss was nothing": 0.1}
    strength = strength.get(name, 1.0)
    temperature = {
        "trained too hot": 5.0,
        "trained too cold": 0.004,
        "trained until its loss was nothing": 0.07,
        "trained well, warm": 0.4,
    }.get(name, 0.2)
    until_nothing = name == "trained until its loss was nothing"
    batch = 4 if name == "trained with few negatives" else 16 if until_nothing else BATCH
    net = encoder(3 if name == "trained through a bottleneck" else 0)
    infonce = until_nothing or name == "trained well, InfoNCE"
    loss_fn = (InfoNCE if infonce else FlatNCE)(temperature)
    mean = 1.0
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(20 * STEPS if until_nothing else STEPS):
        z1, z2 = embedded(net, name, drawn(name, batch), strength)
        if name == "trained without negatives":
            loss = (normalize(z1) - normalize(z2)).square().sum(dim=1).mean()
        else:
            loss = loss_fn(z1, z2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if until_nothing and mean < NOTHING:
            break
    net.eval()
    with torch.no_grad():
        z1, z2 = embedded(net, name, drawn(name, SHOWN), strength)
    arguments = {"z1": z1, "z2": z2, "temperature": temperature}
    return Case(arguments | ({} if batch == BATCH else {"batch_size": batch}))


def drawn(name, count):
    """A batch of images, some of them twice in the cases with repeated images."""
    images = digits()[torch.randperm(len(digits()))[:count]]
    if name.startswith("trained, "):
        some = count // 5
        images[:some] = images[some : 2 * some]
    return images


def embedded(net, name, images, strength):
    first, second = views(images, strength), views(images, strength)
    if name == "trained, data with copied rows":  # copied after augmentation
        some = len(images) // 5
        first[:some], second[:some] = first[some : 2 * some], second[some : 2 * some]
    if name == "trained on mismatched pairs":
        second = second[torch.randperm(len(second))]
    return net(first), net(second)
