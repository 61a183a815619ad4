"""A data set of Hugging Face with the built-in views; here made in memory, without a download.

python examples/own_huggingface.py hub        # the run is runs/hub
"""

import sys

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image

import flatnce
from flatnce.pretrain import load


def digits(split: str) -> Dataset:
    """Instead of ``datasets.load_dataset("mnist", split=split)``."""
    found = load("digits", split)
    columns = {"image": list(np.asarray(found.images[:, 0])), "label": found.labels.tolist()}
    whole = Dataset.from_dict(columns, Features({"image": Image(), "label": ClassLabel(10)}))
    return whole.shuffle(seed=0).select(range(min(512, len(whole))))


def main(name: str = "hub") -> None:
    own = {"data": digits("train"), "test_data": digits("test")}
    flatnce.train(**own, name=name, preset="digits", epochs=2, workers=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
