"""Mutate valid files of every reader, and count errors other than those it may raise.

    python benchmarks/trust/fuzz.py --inputs 100000 --processes 2 --out benchmarks/trust/fuzz.json

An input depends on its number only, so ``--only NUMBER`` repeats a failure. A reader may return,
or raise a ValueError or an OSError. Any other exception, a call of more than two seconds, and
growth of the process beyond ``--memory`` bytes are failures.
"""

import argparse
import copy
import io
import json
import random
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "data_of_0_1"  # valid files of the first version
SECONDS = 2.0
OURS = (ValueError, OSError)


class TooLong(BaseException):
    """A reader took more than two seconds."""


@dataclass(frozen=True)
class Subject:
    """Valid files, and a function that reads their folder."""

    name: str
    files: tuple[str, ...]  # the files that are mutated
    make: Callable[[Path], object]
    read: Callable[[Path], object]


# --- Readers


def read_run_folder(place: Path) -> None:
    from flatnce.pretrain.page.compare import Comparison  # noqa: F401
    from flatnce.pretrain.runs.listing import summary_of
    from flatnce.pretrain.runs.log import read_run, score_cells, tested_on
    from flatnce.pretrain.training.saved import read_config, run_status

    summary_of(place, "run")
    run = read_run(place, "train")
    cells = [score_cells(one) for one in (run.results or {}).get("evaluations", ())]
    tested_on((run.results or {}).get("evaluations", ()))
    assert isinstance(cells, list)
    read_config(place)
    run_status(place)


def read_page(place: Path) -> None:
    from flatnce.pretrain.page.run import page_of_run
    from flatnce.report.page import render_page

    render_page(page_of_run(place))


def examine_log(place: Path) -> None:
    from flatnce.diagnose.records import examine_run

    examine_run(str(place), embeddings=False)


def read_checkpoint(place: Path) -> None:
    from flatnce.pretrain.training.saved import load_encoder

    load_encoder(place)


def read_sweep(place: Path) -> None:
    from flatnce.pretrain.sweeping.sweep import read_sweep

    read_sweep(place)


def read_export(place: Path) -> None:
    from flatnce.pretrain.exporting import load_exported, preprocessing

    preprocessing(place)
    load_exported(place)


def read_store(place: Path) -> None:
    from flatnce.paper.reproduce.store import Store

    Store(place)


def read_arrays(place: Path) -> None:
    from flatnce.diagnose.embeddings import read_embeddings

    read_embeddings(place / "z.npz")


def read_tables(place: Path) -> None:
    from flatnce.mi.tables import read_tables

    for path in place.iterdir():
        read_tables([path], x="0", y="1")


def read_images(place: Path) -> None:
    from flatnce.pretrain.data.readers import load

    files = load(f"{place}/", size=16)
    for number in range(len(files)):
        files.decode(number)


def read_shards(place: Path) -> None:
    from flatnce.pretrain.data.readers import load

    files = load(str(place / "train-000.tar"), size=16)
    for number in range(len(files)):
        files.decode(number)


# --- Valid files


def copy_of(part: str) -> Callable[[Path], object]:
    return lambda place: shutil.copytree(OLD / part, place, dirs_exist_ok=True)


def make_run(place: Path) -> None:
    """A finished run of the first version, with evaluations and an inspection."""
    copy_of("grid/flatnce")(place)
    results = json.loads((place / "results.json").read_text())
    described = {"name": "knn, k = 20", "data": "digits", "test": {"images": 359}}
    scores = {"top1": 0.9, "top5": 1.0, "interval": [0.88, 0.92], "test_images": 359}
    results["evaluations"] = [
        {"name": "knn", "step": 22, "data": "digits", "protocol": described, **scores}
    ]
    (place / "results.json").write_text(json.dumps(results))
    near = {"label": "0", "picture": None}
    portrait = {
        "format_version": 1,
        "step": 22,
        "data": "digits",
        "part": "test",
        "images": 4,
        "options": {"images": 4, "pictures": False},
        "classes": ["0", "1"],
        "similarities": {
            "edges": [-1.0, 0.0, 1.0],
            **{f"{kind}{end}": value for kind in ("positive", "negative") for end, value in
               (("", [0.5, 0.5]), ("_pairs", 4), ("_mean", 0.1))},
        },
        "projection": {
            "method": "PCA", "shares": [0.6, 0.3], "x": [0.1, 0.2, 0.3, 0.4],
            "y": [0.4, 0.3, 0.2, 0.1], "labels": [0, 1, 0, 1],
        },
        "neighbours": [{**near, "neighbours": [{**near, "similarity": 0.9}] * 2}],
        "nearest_same": 0.75,
    }  # fmt: skip
    (place / "portrait.json").write_text(json.dumps(portrait))


def make_records(place: Path) -> None:
    from flatnce.pretrain.runs.log import read_run
    from flatnce.pretrain.runs.records import record_of, write_record

    write_record(record_of("one", read_run(OLD / "grid" / "flatnce"), every=0.1), place)


def make_arrays(place: Path) -> None:
    z = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    np.savez(place / "z.npz", z1=z, z2=z + 0.1, labels=np.arange(8) % 2)


def make_table(kind: str) -> Callable[[Path], object]:
    def make(place: Path) -> None:
        values = np.random.default_rng(0).normal(size=(20, 3))
        if kind == "csv":
            rows = "\n".join(",".join(f"{one:.3f}" for one in row) for row in values)
            (place / "t.csv").write_text("a,b,c\n" + rows + "\n")
        elif kind == "npy":
            np.save(place / "t.npy", values)
        elif kind == "npz":
            np.savez(place / "t.npz", x=values[:, 0], y=values[:, 1])
        else:
            import pandas as pd

            pd.DataFrame(values, columns=list("abc")).to_parquet(place / "t.parquet")

    return make


def picture(kind: str) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


IMAGES = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "webp": "WEBP", "tif": "TIFF", "bmp": "BMP"}


def make_image(ending: str) -> Callable[[Path], object]:
    def make(place: Path) -> None:
        (place / "cat").mkdir(exist_ok=True)
        (place / "cat" / f"1.{ending}").write_bytes(picture(IMAGES[ending]))

    return make


def make_shard(place: Path) -> None:
    with tarfile.open(place / "train-000.tar", "w") as tar:
        for name, content in (("0.png", picture("PNG")), ("0.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


RUN = ("config.json", "environment.json", "metrics.jsonl", "results.json")
STEP = "checkpoints/step-000000022/"
SUBJECTS = (
    Subject("run", RUN, make_run, read_run_folder),
    Subject("run page", (*RUN, "portrait.json"), make_run, read_page),
    Subject("run doctor", RUN, make_run, examine_log),
    Subject(
        "checkpoint",
        (
            "config.json",
            *(STEP + one for one in ("manifest.json", "state.pt", "weights.safetensors")),
        ),
        make_run,
        read_checkpoint,
    ),
    Subject("sweep", ("sweep.json",), copy_of("grid"), read_sweep),
    Subject("export", ("config.json", "model.safetensors"), copy_of("export"), read_export),
    Subject("record", ("one.json",), make_records, read_store),
    Subject("embeddings", ("z.npz",), make_arrays, read_arrays),
    *(
        Subject(f"table {kind}", (f"t.{kind}",), make_table(kind), read_tables)
        for kind in ("csv", "npy", "npz", "parquet")
    ),
    *(
        Subject(f"image {ending}", (f"cat/1.{ending}",), make_image(ending), read_images)
        for ending in IMAGES
    ),
    Subject("shard", ("train-000.tar",), make_shard, read_shards),
)


# --- Mutations


VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3.5,
        1e308,
        -1e-308,
        10**30,
        2**63,
        "",
        "x",
        "nan",
        "../..",
        "\x00",
    ),
    *([], {}, [1], ["x"], [[]], {"x": 1}, [None], "é" * 40, "<script>"),
)


def mutate_json(text: str, chance: random.Random) -> bytes:
    """Replace, remove, add or copy some values of a JSON document, or of a line of JSON lines."""
    lines = text.splitlines() if "\n{" in text else [text]
    place = chance.randrange(len(lines))
    found = json.loads(lines[place])
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        owners: list[tuple[Any, Any]] = []
        stack = [found]
        while stack:
            one = stack.pop()
            keys = list(one) if isinstance(one, dict) else range(len(one))
            owners += [(one, key) for key in keys]
            stack += [one[key] for key in keys if isinstance(one[key], dict | list)]
        if not owners:
            break
        owner, key = chance.choice(owners)
        way = chance.random()
        if way < 0.7:
            owner[key] = copy.deepcopy(
                chance.choice(VALUES)
            )  # later changes must not reach VALUES
        elif way < 0.85:
            del owner[key]
        elif way < 0.95:
            other, at = chance.choice(owners)
            owner[key] = (
                json.loads(json.dumps(other[at]))
                if at in other or (isinstance(other, list) and at < len(other))
                else 1
            )
        else:
            deep: Any = 1
            for _ in range(chance.choice((10, 300))):
                deep = [deep]
            owner[key] = deep
    lines[place] = json.dumps(found)
    return ("\n".join(lines) + "\n").encode()


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        way, at = chance.random(), chance.randrange(len(data)) if data else 0
        if not data:
            break
        if way < 0.4:
            data[at] ^= 1 << chance.randrange(8)
        elif way < 0.6:
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way < 0.7:
            del data[at:]
        elif way < 0.8:
            size = chance.choice((1, 4, 64))
            data[at : at + size] = bytes(chance.randrange(256) for _ in range(size))
        elif way < 0.9:
            data[at:at] = data[: chance.choice((1, 16, 512))]
        else:
            del data[at : at + chance.choice((1, 4, 64))]
    return bytes(data)


def mutated(path: str, content: bytes, chance: random.Random) -> bytes:
    if path.endswith((".json", ".jsonl")) and chance.random() < 0.75:
        return mutate_json(content.decode(), chance)
    changed = mutate_bytes(content, chance)
    return changed


def sign_again(place: Path, path: str) -> None:
    """Update the checksum of a changed file of a checkpoint or an export."""
    import hashlib

    file = place / path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if path.startswith("checkpoints/") and file.name != "manifest.json":
        manifest = json.loads((file.parent / "manifest.json").read_text())
        manifest["files"][file.name]["sha256"] = digest
        (file.parent / "manifest.json").write_text(json.dumps(manifest))
    elif file.name == "model.safetensors":
        config = json.loads((place / "config.json").read_text())
        config["flatnce"]["weights"] |= {"sha256": digest, "bytes": file.stat().st_size}
        (place / "config.json").write_text(json.dumps(config))


# --- The loop


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TooLong

    # Process time counts, because the machine may be busy; a call that waits forever uses none.
    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    for (timer, number), limit in zip(timers.items(), (seconds, 60 * seconds), strict=True):
        signal.signal(number, stop)
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)


@contextmanager
def narrow_network() -> Iterator[None]:
    """The network of the valid files, which is narrow so that they are small."""
    from flatnce.pretrain import models

    whole, models.SmallNet = models.SmallNet, partial(models.SmallNet, width=8)
    try:
        yield
    finally:
        models.SmallNet = whole


class Fuzzer:
    """Makes and reads inputs, and counts how the readers end."""

    def __init__(self, folder: Path, subjects: tuple[Subject, ...] = SUBJECTS) -> None:
        self.folder, self.subjects = folder, subjects
        self.valid: dict[str, dict[str, bytes]] = {}
        for subject in subjects:
            place = folder / subject.name.replace(" ", "-")
            place.mkdir(parents=True)
            subject.make(place)
            subject.read(place)  # the unchanged file is valid
            files = [path for path in place.rglob("*") if path.is_file()]
            self.valid[subject.name] = {str(p.relative_to(place)): p.read_bytes() for p in files}

    def take(self, number: int) -> tuple[Subject, str, str]:
        """Make input ``number`` and read it: the subject, the file, and the failure if any."""
        chance = random.Random(number)
        subject = self.subjects[number % len(self.subjects)]
        place, valid = self.folder / subject.name.replace(" ", "-"), self.valid[subject.name]
        path = chance.choice(subject.files)
        (place / path).write_bytes(mutated(path, valid[path], chance))
        if chance.random() < 0.7:
            sign_again(place, path)
        try:
            with time_limit(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                subject.read(place)
            failure = ""
        except OURS as error:
            failure = "" if str(error) else f"{type(error).__name__} without a message"
        except TooLong:
            failure = f"more than {SECONDS:g} s"
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            inside = [one for one in frames if "flatnce" in one.filename] or frames
            where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"
            failure = f"{type(error).__name__} at {where}: {str(error).splitlines()[:1]}"
        finally:
            for name in (path, "config.json", f"{STEP}manifest.json"):
                if name in valid:
                    (place / name).write_bytes(valid[name])
        return subject, path, failure


Found = tuple[Counter[str], dict[str, list[int]], int]  # inputs, failures, bytes of growth
PART = 100  # inputs between two updates of the record


def prepare(folder: Path, subjects: str) -> None:
    """Make the valid files of this process."""
    global fuzzer, before
    chosen = tuple(one for one in SUBJECTS if one.name.startswith(subjects))
    with narrow_network():
        fuzzer = Fuzzer(Path(tempfile.mkdtemp(dir=folder)), chosen)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def take_part(numbers: range, deadline: float) -> Found:
    """Read the inputs of these numbers until the time is over."""
    counts, failures = Counter[str](), dict[str, list[int]]()
    for number in numbers:
        if time.time() > deadline:
            break
        with narrow_network():
            subject, path, failure = fuzzer.take(number)
        counts[subject.name] += 1
        if failure:
            said = f"{subject.name}: {path}: {failure}"
            failures.setdefault(said, []).append(number)
            print(f"{number}: {said}", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return counts, failures, grown * 1024


def record_of(found: list[Found]) -> dict[str, Any]:
    """The counts of the inputs that were read."""
    counts = sum((one[0] for one in found), Counter[str]())
    failures: dict[str, list[int]] = {}
    for _, some, _ in found:
        for said, where in some.items():
            failures[said] = sorted([*failures.get(said, ()), *where])
    return {
        "inputs": sum(counts.values()),
        "by_reader": dict(sorted(counts.items())),
        "failures": sum(map(len, failures.values())),
        "kinds_of_failure": {said: where[:5] for said, where in failures.items()},
        "most_memory_grown_bytes": max((one[2] for one in found), default=0),
    }


def main() -> int:
    from options import Series

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, default=2 << 30, help="bytes of address growth")
    parser.add_argument("--subject", default="", help="only subjects whose names begin so")
    series = Series(parser, "inputs", 2000)
    numbers, given = series.numbers, series.given
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            series.processes, initializer=prepare, initargs=(Path(folder), given.subject)
        ) as pool,
    ):
        parts = [numbers[first : first + PART] for first in range(0, len(numbers), PART)]
        waiting = [pool.submit(take_part, part, series.deadline) for part in parts]
        record = series.follow(waiting, record_of)
    print(json.dumps({k: v for k, v in record.items() if k != "kinds_of_failure"}, indent=1))
    bad = record["failures"] or record["most_memory_grown_bytes"] > given.memory
    return int(bool(bad) or not record["every_process_ended"])


if __name__ == "__main__":
    sys.exit(main())
