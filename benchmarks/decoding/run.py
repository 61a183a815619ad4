"""Images per second from JPEG files to two crops on the device, and in ResNet-50's training.

    python benchmarks/decoding/run.py --out results.json           with a GPU: every part
    python benchmarks/decoding/run.py --small --out /tmp/try.json  a try of every part, on a CPU
    python benchmarks/decoding/run.py --only core_time --files 2 --out core_time.json

The script makes the files: smooth noise with edges, 500 x 375 pixels, JPEG of quality 90.
The peer is torchvision's ImageFolder, which decodes by Pillow, two RandomResizedCrops, and a
DataLoader at several numbers of workers. Ours are ``Streaming`` by worker processes and, on a GPU,
by nvJPEG. All end with uint8 crops on the device. The methods take turns in every round.
"""

import argparse
import json
import statistics
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import Compose, Lambda, PILToTensor, RandomResizedCrop

from flatnce.environment import environment
from flatnce.pretrain import preset
from flatnce.pretrain.data import Batch, FolderSet, Streaming, Views
from flatnce.pretrain.data import crops as crops_module
from flatnce.pretrain.data.crops import DeviceCrops, crop_files
from flatnce.pretrain.data.image_set import available_cores
from flatnce.pretrain.training.state import Training


def write_photograph(place, width, height, number):
    """A JPEG of smooth noise at four scales, with six straight edges of colour."""
    rng = np.random.default_rng(number)
    pixels = np.full((height, width, 3), 128, np.float32)
    for cells, levels in ((4, 60), (16, 40), (64, 25), (200, 10)):
        shape = (cells * height // width + 2, cells + 2, 3)
        coarse = torch.from_numpy(rng.normal(size=shape).astype(np.float32)).permute(2, 0, 1)
        fine = torch.nn.functional.interpolate(coarse[None], (height, width), mode="bilinear")
        pixels += levels * fine[0].permute(1, 2, 0).numpy()
    y, x = np.mgrid[:height, :width]
    for _ in range(6):
        a, b, c = rng.normal(size=3)
        pixels[a * x / width + b * y / height > c / 2] += 25 * rng.normal(size=3)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(place / f"class{number % 2}" / f"{number:05}.jpg", quality=90)


def write_photographs(place, options):
    for name in ("class0", "class1"):
        (place / name).mkdir(parents=True)
    torch.set_num_threads(1)
    write = partial(write_photograph, place, options.width, options.height)
    with ProcessPoolExecutor(available_cores()) as pool:
        list(pool.map(write, range(options.files), chunksize=16))


def part_core_time(place, options, device):
    """Core milliseconds per image of one process, in turns; also for larger photographs."""
    torch.set_num_threads(1)
    crop = Compose([RandomResizedCrop(options.size), PILToTensor()])
    views, found = Views(options.size, seed=0), {}
    for width, height, count in ((options.width, options.height, 64), (2000, 1500, 8)):
        folder = place.with_name(f"{width}x{height}")
        for name in ("class0", "class1"):
            (folder / name).mkdir(parents=True)
        for number in range(count):
            write_photograph(folder, width, height, number)
        paths = list(map(str, sorted(folder.rglob("*.jpg"))))
        numbers = torch.arange(count)

        def by_peer(paths=paths):
            return torch.stack([two_of(crop, default_loader(path)) for path in paths])

        def by_ours(paths=paths, numbers=numbers):
            return crop_files(paths, numbers, views, 0, 2)

        times = {"peer": [], "ours": []}
        for _ in range(options.repeats_of_core_time):
            for name, work in (("peer", by_peer), ("ours", by_ours)):
                began = time.process_time()
                work()
                times[name].append(1000 * (time.process_time() - began) / count)
        ratios = [peer / ours for peer, ours in zip(*times.values(), strict=True)]
        medians = {name: statistics.median(each) for name, each in times.items()}
        spread = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        found[f"{width} x {height}"] = {"milliseconds": medians, "speed_up": spread}
        print(f"{width} x {height}: {medians}, {spread}", flush=True)
    return found


class Contender:
    """A way of loading: ``batches()`` gives crops (b, 2, 3, s, s) on the device without end."""

    def __init__(self, name, batches, workers, device):
        self.name, self.batches, self.workers, self.device = name, batches, workers, device

    def images_per_second(self, rounds):
        """Measure after the first batch of every worker, over a number of batches of each."""
        batches = self.batches()
        for _ in range(self.workers):
            images = next(batches)
        self._wait()
        began = time.perf_counter()
        for _ in range(rounds * self.workers):
            images = next(batches)
        self._wait()
        speed = rounds * self.workers * len(images) / (time.perf_counter() - began)
        batches.close()
        return speed

    def _wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def peer_batches(place, options, workers, batch_size, device):
    crop = Compose([RandomResizedCrop(options.size), PILToTensor()])
    both = Lambda(partial(two_of, crop))
    files = ImageFolder(place, both)
    files.samples *= options.repeats
    loader = DataLoader(
        files,
        batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    while True:
        for images, _ in loader:
            yield images.to(device, non_blocking=True)


def two_of(crop, image):
    return torch.stack([crop(image), crop(image)])


def our_batches(files, options, workers, batch_size, device, decode):
    views = Views(options.size, seed=0)
    loader = Streaming(
        files, batch_size, 0, workers=workers, device=device, views=views, decode=decode
    )
    epoch = 0
    while True:
        for batch in loader.epoch(epoch):
            yield batch.images
        epoch += 1


def contenders(place, options, batch_size, device, peers):
    """The peer at each number of workers, ours by workers, ours by nvJPEG."""
    paths = tuple(map(str, sorted(place.rglob("*.jpg")))) * options.repeats
    files = FolderSet(paths, torch.arange(len(paths)) % 2, ("class0", "class1"))
    found = [
        Contender(
            f"peer, {workers} workers",
            partial(peer_batches, place, options, workers, batch_size, device),
            workers,
            device,
        )
        for workers in peers
    ]
    cores = available_cores()
    for decode in ("cpu", "gpu") if device.type == "cuda" else ("cpu",):
        load = partial(our_batches, files, options, cores, batch_size, device, decode)
        ahead = cores if decode == "cpu" else 4
        found.append(Contender(f"ours, {decode}", load, ahead, device))
    return found


def part_loading(place, options, device):
    """Images per second of loading alone, in turns."""
    found = {}
    several = contenders(place, options, options.load_batch, device, options.peer_workers)
    for number in range(options.rounds):
        for one in several:
            rounds = options.waves * (4 if one.name == "ours, gpu" else 1)
            found.setdefault(one.name, []).append(round(one.images_per_second(rounds), 1))
            print(f"round {number}: {one.name}: {found[one.name][-1]:.0f} images/s", flush=True)
    best = max(min(speeds) for name, speeds in found.items() if name.startswith("peer"))
    ratios = {name: min(v) / best for name, v in found.items() if name.startswith("ours")}
    return {"images_per_second": found, "worst_round_over_the_peers_best_worst_round": ratios}


def part_agreement(place, options, device):
    """Differences between nvJPEG's and Pillow's crops, also for files of other kinds."""
    if device.type != "cuda":
        return None
    with Image.open(next(place.rglob("*.jpg"))) as image:
        image.convert("CMYK").save(place / "class0" / "cmyk.jpg")
        image.convert("L").save(place / "class0" / "grey.jpg")
        image.save(place / "class0" / "progressive.jpg", progressive=True)
        image.save(place / "class0" / "image.png")
    other = [str(place / "class0" / name) for name in ("cmyk.jpg", "grey.jpg", "image.png")]
    paths = [*other, str(place / "class0" / "progressive.jpg")]
    paths += list(map(str, sorted(place.rglob("0*.jpg"))))[:64]
    views, numbers = Views(options.size, seed=0), torch.arange(len(paths))
    (ours,) = DeviceCrops(paths, views, 2, device).epoch([numbers], 0)
    far = (ours.cpu().int() - crop_files(paths, numbers, views, 0, 2).int()).abs().float()
    for path in paths[:4]:
        Path(path).unlink()
    means = {Path(path).name: float(row.mean()) for path, row in zip(paths[:4], far, strict=False)}
    high = float(far[4:].flatten()[:: 1 + far.numel() // 2**20].quantile(0.999))
    return {"mean_levels": float(far[4:].mean()), "quantile_999_levels": high, "by_kind": means}


def part_stages(place, options, device):
    """Images per second of the parts of loading by nvJPEG, and of a copy to the device."""
    if device.type != "cuda":
        return None
    paths = list(map(str, sorted(place.rglob("*.jpg"))))[: options.load_batch]
    maker = DeviceCrops(paths, Views(options.size, seed=0), 2, device)
    data = [Path(path).read_bytes() for path in paths]
    images = maker._decode(paths, data)
    sizes = zip(*(image.shape[1:] for image in images), strict=True)
    boxes = maker.views.boxes(torch.arange(len(paths)), 0, *sizes)
    shape = (len(paths), 2, 3, options.size, options.size)
    pinned = torch.zeros(shape, dtype=torch.uint8).pin_memory()
    stages = {
        "reading, one thread": lambda: [Path(path).read_bytes() for path in paths],
        "nvJPEG": lambda: maker._decode(paths, data),
        "cropping on the GPU": lambda: maker._crop(images, boxes, slice(None)),
        "copying crops to the GPU": lambda: pinned.to(device, non_blocking=True),
    }
    found = {}
    for name, stage in stages.items():
        for repeat in range(6):
            if repeat == 1:
                torch.cuda.synchronize()
                began = time.perf_counter()
            stage()
        torch.cuda.synchronize()
        found[name] = round(5 * len(paths) / (time.perf_counter() - began), 1)
    print(found, flush=True)
    return found


def timed(kept, name, work):
    """Wrap the work so that it adds its wall time and this thread's core time to ``kept``."""

    def wrapped(*given):
        began, on_core = time.perf_counter(), time.thread_time()
        try:
            return work(*given)
        finally:
            kept[name].append((time.perf_counter() - began, time.thread_time() - on_core))

    return wrapped


def host_times(module, threads, paths, options, device):
    """Wall and core milliseconds per batch of each part of a loader by nvJPEG, in its threads."""
    kept = defaultdict(list)
    maker = module.DeviceCrops(paths, Views(options.size, seed=0), 2, device)
    maker.views = SimpleNamespace(size=options.size, boxes=timed(kept, "boxes", maker.views.boxes))
    for name in ("_make", "_decode", "_crop"):
        setattr(maker, name, timed(kept, name.strip("_"), getattr(maker, name)))
    before, repeats = (module.THREADS, module.read_bytes), 8 if device.type == "cuda" else 1
    module.THREADS, module.read_bytes = threads, timed(kept, "reading", module.read_bytes)
    made = maker.epoch(torch.randperm(len(paths)).split(options.load_batch) * repeats, 0)
    for _ in range(threads):
        next(made)
    kept.clear()
    began = time.perf_counter()
    images = sum(len(crops) for crops in made)
    if device.type == "cuda":
        torch.cuda.synchronize()
    speed = round(images / (time.perf_counter() - began), 1)
    module.THREADS, module.read_bytes = before
    spent = {
        name: [round(1000 * sum(each) / len(kept["make"]), 3) for each in zip(*pairs, strict=True)]
        for name, pairs in kept.items()
    }
    print(f"{threads} threads: {speed} images/s, {spent}", flush=True)
    return {"threads": threads, "images_per_second": speed, "wall_and_core_ms": spent}


def part_host(place, options, device):
    """Time of each part of nvJPEG's loader by the number of threads, and time on the GPU."""
    paths = list(map(str, sorted(place.rglob("*.jpg"))))
    found = {
        "threads": [host_times(crops_module, n, paths, options, device) for n in (1, 2, 3, 4)]
    }
    if device.type == "cuda":
        maker = DeviceCrops(paths, Views(options.size, seed=0), 2, device)
        batches = torch.randperm(len(paths)).split(options.load_batch)[:8]
        list(maker.epoch(batches, 0))
        found["gpu"] = gpu_milliseconds(lambda: list(maker.epoch(batches, 0)), len(batches))
    return found


def gpu_milliseconds(work, steps):
    """Milliseconds per step of the GPU's operations during ``work``, by stream and name."""
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            began = time.perf_counter()
            work()
            torch.cuda.synchronize()
            passed = time.perf_counter() - began
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    streams = defaultdict(Counter)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            name = event["name"][:60]
            streams[str(event["args"].get("stream"))][name] += event["dur"] / 1000 / steps
    shown = {
        stream: {"all": round(names.total(), 3)}
        | {name: round(spent, 3) for name, spent in names.most_common(8)}
        for stream, names in streams.items()
    }
    return {"wall": round(1000 * passed / steps, 3), "streams": shown}


def part_training(place, options, device):
    """The same steps with crops already on the device, and with each way of loading."""
    config = preset("imagenet").override(
        data=f"{place}/",
        batch_size=options.batch,
        view_size=options.size,
        backbone=options.backbone,
        device=str(device),
        optimizer="sgd",
        epochs=100,
        workers=0,
        warmup_epochs=0.0,
    )
    training = Training(config, Path(tempfile.gettempdir()) / "decoding", device)
    best = [options.training_peer]
    several = contenders(place, options, options.batch, device, best)
    made = several[-1].batches()
    held = list(islice(made, 4))
    made.close()
    several.insert(0, Contender("crops on the device", lambda: forever(held), 1, device))
    indices = torch.arange(options.batch, device=device)

    def steps(batches, count):
        for crops in islice(batches, count):
            training.take_step(Batch(indices, crops, indices), 0)

    steps(forever(held), 6)  # records the step
    found, profiles = {}, {}
    for number in range(options.train_rounds):
        for one in several:
            batches = one.batches()
            steps(batches, options.warm_steps)
            one._wait()
            began = time.perf_counter()
            steps(batches, options.steps)
            one._wait()
            speed = options.steps * options.batch / (time.perf_counter() - began)
            if number == 0 and device.type == "cuda":
                profiles[one.name] = gpu_milliseconds(lambda made=batches: steps(made, 5), 5)
            batches.close()
            found.setdefault(one.name, []).append(round(speed, 1))
            print(f"round {number}: training, {one.name}: {speed:.0f} images/s", flush=True)
    there = sum(found["crops on the device"])
    shares = {name: sum(speeds) / there for name, speeds in found.items()}
    profiled = {"gpu_milliseconds_per_step": profiles, "notes": training.notes}
    return {"images_per_second": found, "share": shares, **profiled}


def forever(batches):
    while True:
        yield from batches


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="few and small, to try it")
    parser.add_argument(
        "--only", nargs="+", help="core_time, loading, agreement, stages, host, training"
    )
    parser.add_argument("--repeats-of-core-time", type=int, default=5)
    parser.add_argument("--files", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=16, help="times a file is in the set")
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--size", type=int, default=224, help="side of a view")
    parser.add_argument("--load-batch", type=int, default=128)
    parser.add_argument("--peer-workers", type=int, nargs="+", default=[12, 16, 24])
    parser.add_argument("--training-peer", type=int, default=16, help="workers of the peer there")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--waves", type=int, default=6, help="batches timed of each worker")
    parser.add_argument("--batch", type=int, default=256, help="images per step")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--train-rounds", type=int, default=2)
    # More batches than the workers prefetch; otherwise a slow loader would seem faster.
    parser.add_argument("--warm-steps", type=int, default=34)
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    if options.small:
        options.files, options.load_batch, options.batch, options.backbone = 64, 8, 8, "resnet18"
        options.peer_workers, options.training_peer, options.waves = [1, 2], 2, 4
        options.rounds, options.train_rounds, options.warm_steps, options.steps = 2, 1, 1, 2
    return options


def main():
    options = parsed()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    record = {"settings": settings, "environment": environment([0])}
    parts = [part_core_time, part_loading, part_agreement, part_stages, part_host, part_training]
    parts = [part for part in parts if part.__name__[5:] in (options.only or [part.__name__[5:]])]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "photographs"
        began = time.perf_counter()
        write_photographs(place, options)
        sizes = [path.stat().st_size for path in place.rglob("*.jpg")]
        record["bytes_per_file"] = sum(sizes) / len(sizes)
        for part in parts:
            try:
                record[part.__name__[5:]] = part(place, options, device)
            except Exception:  # still run the other parts
                record[part.__name__[5:]] = {"failed": traceback.format_exc()}
                traceback.print_exc()
            print(f"{part.__name__}: {time.perf_counter() - began:.0f} s", flush=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
