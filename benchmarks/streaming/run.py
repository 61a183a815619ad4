"""The same trainings from files through ``Streaming`` and from images in memory, seed by seed.

    python benchmarks/streaming/run.py --out digits.json                      minutes on a CPU
    python benchmarks/streaming/run.py --data tiny-imagenet --root DATA --epochs 20 --out tiny.json
    python benchmarks/streaming/run.py --data tiny-imagenet --files FOLDER --out tiny.json

The digits are written as JPEG files of 16 x 16 pixels first; Tiny-ImageNet's are files already
(``flatnce data tiny-imagenet``). FOLDER holds some of its files as ``train/CLASS/`` and
``test/CLASS/``. Order, boxes, flips and colours of a seed are the same on both
paths. In memory, the device crops the decoded image and keeps the crop in floating point. From
files, a worker makes the crop and rounds it to integer levels.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from PIL import Image

from flatnce.environment import environment
from flatnce.pretrain import extract, knn_predict, linear_probe, preset
from flatnce.pretrain.data import Resident, load
from flatnce.pretrain.data.catalog import find
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.state import Training

RATE = 0.12
"""The learning rate at batch 256 that the presets had when files and memory were compared."""


def write_digits(folder, side):
    """scikit-learn's digits as JPEG files, a folder per class."""
    for split in ("train", "test"):
        digits = load("digits", split)
        for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
            place = folder / split / str(int(label))
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(image[0].numpy()).resize((side, side), Image.BICUBIC)
            picture.save(place / f"{number:04}.jpg", quality=95)


def settings_of(options, folder):
    if options.data == "digits":
        write_digits(folder, 16)
        changes = {"data": f"{folder}/", "decode_size": 16, "view_size": 16, "crop_least": 0.5}
        return preset("digits").override(**changes)
    changes = {"stream": True, "view_size": options.view_size, "rate": RATE}
    if options.files is None:
        return preset(options.data).override(root=options.root, **changes)
    side = find(options.data).size
    sizes = {"decode_size": side, "view_size": options.view_size or side}
    return preset(options.data).override(data=f"{options.files}/", **(changes | sizes))


def trained(config, device, resident):
    """Train, and measure on the test set; ``resident`` holds the same files in memory."""
    training = Training(config, Path(tempfile.gettempdir()) / "streaming", device)
    if resident:
        held = training.images.image_set.decoded().to(device)
        loader = Resident(held, config.run.batch_size, config.run.seed)
        training.images = replace(training.images, image_set=held, loader=loader)
    began = time.perf_counter()
    for batch, epoch in training.batches():
        training.take_step(batch, epoch)
    training.check()
    seconds = time.perf_counter() - began
    views, data = training.images.views, config.data
    shown = {"size": views.size, "mean": views.mean, "std": views.std, "workers": data.workers}
    options = {"root": data.root, "size": data.decode_size}
    sets = (load(data.data, split, **options) for split in ("train", "test"))
    train, test = (extract(training.learner.encoder.backbone, part, **shown) for part in sets)
    near = knn_predict(train, test.features) == test.labels
    linear = linear_probe(train, test).scores.argmax(1).to(test.labels.device) == test.labels
    speed = training.steps * config.run.batch_size / seconds
    found = {"knn": near, "linear": linear}
    print(f"{len(train)} training images, {len(test)} test images", flush=True)
    return {
        **{name: 100 * float(right.float().mean()) for name, right in found.items()},
        "images_per_second": speed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="digits", choices=("digits", "tiny-imagenet"))
    parser.add_argument("--root", default=None)
    parser.add_argument("--files", type=Path, help="a folder with some of the files of --data")
    parser.add_argument("--view-size", type=int, help="side of a view; the images' by default")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    record = {"data": options.data, "epochs": options.epochs, "view_size": options.view_size}
    record |= {
        "environment": environment(options.seeds, str(device)),
        "resident": [],
        "streaming": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        config = settings_of(options, Path(folder) / "files")
        for seed in options.seeds:
            for path in ("resident", "streaming"):
                run = config.override(
                    seed=seed,
                    epochs=options.epochs,
                    workers=options.workers,
                    device=str(device),
                    tensorboard=False,
                )
                row = {"seed": seed, **trained(run, device, path == "resident")}
                record[path].append(row)
                print(path, row, flush=True)
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    for name in ("knn", "linear"):
        pairs = zip(record["streaming"], record["resident"], strict=True)
        gaps = [one[name] - other[name] for one, other in pairs]
        record[f"{name}_gap"] = {"mean": statistics.mean(gaps), "each": gaps}
        print(f"{name}: streaming minus resident {statistics.mean(gaps):+.2f} points", gaps)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
