"""A training set with a long tail: the number of images falls exponentially with the class.

Class c of k keeps n · 100^(−c / (k − 1)) images, rounded down, where n is the number in the
largest class: the definition of Cao et al., 2019, LDAM, arXiv:1906.07413, with the imbalance
factor 100. Of CIFAR-10's 50,000 images 12,406 are left, 5,000 of class 0 and 50 of class 9.
"""

from dataclasses import replace

import torch

from flatnce.pretrain.data import CATALOG, find, readers
from flatnce.pretrain.data.batches import shuffled_classes

FACTOR, SEED = 100, 0
LARGEST = {"cifar10": 5_000, "digits": 140}
"""Images of the largest class, by data set; every class of the whole set has as many."""
LONG_TAIL = "-long-tail"


def counts(base, classes=10):
    """Images by class."""
    most = LARGEST[base]
    # Rounded first, because 100 ** -1 times 5,000 must not become 49.999.
    return [int(round(most * FACTOR ** (-c / (classes - 1)), 9)) for c in range(classes)]


def long_tail(images, base):
    """The images of a training set that stay, drawn once and the same for all runs."""
    groups = zip(shuffled_classes(images.labels, SEED), counts(base), strict=True)
    return images.subset(torch.cat([group[:size] for group, size in groups]).sort().values)


def add_long_tail(base):
    """Add the set `BASE-long-tail` to the data sets of this process; its test split is whole."""
    entry, read = find(base), getattr(readers, base)

    def read_tail(folder, split):
        found = read(folder, split)
        return long_tail(found, base) if split == "train" else found

    splits = {**entry.splits, "train": sum(counts(base))}
    CATALOG[base + LONG_TAIL] = replace(entry, name=base + LONG_TAIL, splits=splits)
    setattr(readers, (base + LONG_TAIL).replace("-", "_"), read_tail)
