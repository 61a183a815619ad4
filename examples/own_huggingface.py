"""A data set of Hugging Face with the built-in views; here made in memory, without a download.

python examples/own_huggingface.py runs/hub
"""

import sys

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image

from flatnce.pretrain import load, preset, train
from flatnce.pretrain.evaluation import evaluate_run


def digits(split: str) -> Dataset:
    """Instead of ``datasets.load_dataset("mnist", split=split)``."""
    found = load("digits", split)
    columns = {"image": list(np.asarray(found.images[:, 0])), "label": found.labels.tolist()}
    whole = Dataset.from_dict(columns, Features({"image": Image(), "label": ClassLabel(10)}))
    return whole.shuffle(seed=0).select(range(min(512, len(whole))))


def main(directory: str) -> dict[str, float]:
    config = preset("digits").override(epochs=2, workers=0)
    train(config, directory, data=digits("train"), test_data=digits("test"), report=print)
    found = evaluate_run(directory, ["knn", "linear"])
    return {one["protocol"]["name"]: one["top1"] for one in found}


if __name__ == "__main__":
    print(main(sys.argv[1]))
