"""SimCLR's augmentation of 32 x 32 images on one core: batched views against torchvision.

    OMP_NUM_THREADS=1 python benchmarks/augmentation/run.py      writes results.json beside this

Both do the same: random resized crop, flip, colour jitter, grayscale, to float, normalise; two
views per image, the batch stacked at the end. A repeat times one right after the other, so that
both see the same load of the machine. Seconds are core time of this process; wall time is also
recorded.
"""

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

from flatnce.pretrain.data.views import Views
from flatnce.pretrain.runs.log import environment

SIZE, VIEWS, STRENGTH = 32, 2, 0.5
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def pictures(count, seed):
    """Smooth colours with added noise, uint8."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bicubic")
    noise = torch.rand(count, 3, SIZE, SIZE, generator=generator)
    return (255 * (0.8 * smooth + 0.2 * noise).clamp(0, 1)).to(torch.uint8)


def by_torchvision(images):
    """A function that makes the batch's views one by one on Pillow images, decoded beforehand."""
    decoded = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    colours = transforms.ColorJitter(*(0.8 * STRENGTH,) * 3, 0.2 * STRENGTH)
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([colours], 0.8),
            transforms.RandomGrayscale(0.2),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return lambda: torch.stack(
        [torch.stack([augment(image) for image in decoded]) for _ in range(VIEWS)]
    )


def batched(images, seed):
    draw = Views(SIZE, seed=seed, jitter=STRENGTH, mean=MEAN, std=STD)
    indices = torch.arange(len(images))
    return lambda: draw(images, indices, epoch=0, views=VIEWS)


def microseconds(make, views, least):
    """Core and wall time per view, over as many calls as fill ``least`` seconds of core time."""
    calls, core, wall = 0, time.process_time(), time.perf_counter()
    while time.process_time() - core < least:
        make()
        calls += 1
    spent = time.process_time() - core, time.perf_counter() - wall
    return [1e6 * seconds / (calls * views) for seconds in spent]


def spread(values):
    ordered = [round(value, 2) for value in sorted(values)]
    return {
        "median": round(statistics.median(ordered), 2),
        "least": ordered[0],
        "most": ordered[-1],
    }


def measure(batch, repeats, least, seed):
    images = pictures(batch, seed)
    makers = {"torchvision": by_torchvision(images), "flatnce": batched(images, seed)}
    shapes = {name: tuple(make().shape) for name, make in makers.items()}  # also warms up
    assert shapes["torchvision"] == shapes["flatnce"], shapes
    times = {name: [] for name in makers}
    for _ in range(repeats):
        for name, make in makers.items():
            times[name].append(microseconds(make, batch * VIEWS, least))
    result = {"batch": batch}
    for kind, place in (("core", 0), ("wall", 1)):
        theirs, ours = ([t[place] for t in times[name]] for name in ("torchvision", "flatnce"))
        result[kind] = {
            "torchvision_us_per_view": spread(theirs),
            "flatnce_us_per_view": spread(ours),
            "speed_up": spread([a / b for a, b in zip(theirs, ours, strict=True)]),
        }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="least a measurement")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # for torchvision's random numbers; ours do not use it
    results = {
        "environment": environment([0], "cpu"),
        "torchvision": version("torchvision"),
        "pillow": version("pillow"),
        "size": SIZE,
        "views": VIEWS,
        "repeats": options.repeats,
        "measurements": [
            measure(batch, options.repeats, options.seconds, 0) for batch in options.batch_sizes
        ],
    }
    for found in results["measurements"]:
        up = found["core"]["speed_up"]
        print(f"batch {found['batch']}: {up['median']} times ({up['least']} to {up['most']})")
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
