"""What is evaluated, on which images, and by which protocols.

A protocol takes a bench and a data set and yields results, as dictionaries. ``protocol`` of a
result has everything needed to repeat it; its ``name`` distinguishes the rows of one protocol,
for example ``knn, k = 20``. Accuracies are between 0 and 1.
"""

import errno
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatnce.core.diagnostics import pool_information
from flatnce.own_code import OBJECT, is_own
from flatnce.pretrain.data import (
    MissingData,
    OwnSet,
    Views,
    data_root,
    find,
    has_part,
    holdout,
    image_folder,
    is_path,
    label_fraction,
    load,
    permutation,
)
from flatnce.pretrain.data.own_set import AnySet
from flatnce.pretrain.data.readers import is_shards
from flatnce.pretrain.evaluation.features import Features, conversion, embed_views, extract
from flatnce.pretrain.evaluation.finetuning import FinetuneConfig, finetune
from flatnce.pretrain.evaluation.knn import TEMPERATURE, knn_scores
from flatnce.pretrain.evaluation.metrics import measure
from flatnce.pretrain.evaluation.options import Options, expand
from flatnce.pretrain.evaluation.probe import FORMS, drawn, linear_probe, probe_by_descent
from flatnce.pretrain.runs.log import RESULTS, add_evaluation, identity, logged_lines, read_run
from flatnce.pretrain.training.config import DataConfig
from flatnce.pretrain.training.images import has_own_test, load_images, own_functions, views_of
from flatnce.pretrain.training.learner import build_encoder
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import LoadedEncoder, load_encoder

# The test part held out of a folder without one, which is always the same images: its share, the
# seed, and the smallest class it works for.
SHARE, SEED, FEWEST = 0.2, 0, 5
# Up to so many images, the paper's rate of fine-tuning, 5e-5, is too low for the few steps that
# its 100 epochs then have: digits reach 85.8 % with it and 99.2 % with 5e-4.
FEW_IMAGES = 10_000
PAPER_SHARES = (0.01, 0.1)  # of the labels, in Table S4
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk


class Bench:
    """Loads data sets and extracts the features of a trained encoder once for all protocols.

    ``data`` is the set that the encoder was trained on. Where the options do not name a root, the
    data sets are where they were in training; ``temperature`` is by default the config's.
    """

    def __init__(
        self,
        run: LoadedEncoder,
        options: Options | None = None,
        report: Callable[[str], None] = lambda line: None,
        temperature: float | None = None,
    ) -> None:
        given, trained = options or Options(), run.config.data
        self.options = replace(
            given,
            root=given.root or trained.root,
            skip_unreadable=given.skip_unreadable or trained.skip_unreadable,
        )
        self.run, self.report = run, report
        self.temperature = temperature or run.config.loss.temperature
        mean, std = map(tuple, run.normalisation)
        # How images are prepared, as arguments of extract and of FinetuneConfig.
        self.input: dict[str, Any] = {
            "size": given.size or run.size,
            "resize": given.resize,
            "mean": mean,
            "std": std,
            "channels": run.channels,
        }
        self.data = trained.data
        self.sets: dict[tuple[str, str], AnySet] = {}
        self.extracted: dict[tuple[str, str], Features] = {}
        self._held: dict[str, Tensor] = {}

    def load(self, data: str, part: str) -> AnySet:
        """The images of a set, or of a folder's path.

        The part is ``train``, all labelled images that are not test images, or ``test``.
        """
        if (data, part) not in self.sets:
            own = is_own(data) and not has_own_test(self._own(data, "test"))
            if own or _has_no_test(data):
                whole = self._read(data, "train")
                rest, self._held[data] = _split_labels(whole, data)
                self.sets[data, "train"] = whole.subset(rest)
                self.sets[data, "test"] = whole.subset(self._held[data])
            else:
                self.sets[data, part] = self._read(data, _split_of(data, part))
        return self.sets[data, part]

    def part(self, data: str, part: str) -> dict[str, Any]:
        """Which part of a set was used, for a result."""
        found: dict[str, Any] = {"images": len(self.load(data, part))}
        split = _split_of(data, part)
        seen = data in self._held or split == self.run.config.data.split
        if part == "test" and seen and self.is_trained_on(data):
            found["note"] = "the encoder was pretrained on these samples too, without their labels"
        if data not in self._held:
            return {"split": split, **found}
        if part == "train":
            return {"split": "train, without the samples held out as a test part", **found}
        how = {"fraction": SHARE, "draw": "stratified", "seed": SEED}
        return {"split": "held out of train", **how, "drawn": drawn(self._held[data]), **found}

    def is_trained_on(self, data: str) -> bool:
        """Whether a set is the one that the encoder was trained on."""
        return Path(data).expanduser().resolve() == Path(self.data).resolve()

    def _own(self, data: str, split: str) -> DataConfig:
        """The settings of a user's data set, the run's own or another; without augmentation."""
        test = self.run.config.data.test_data if data == self.data else None
        without: dict[str, Any] = {"augment": None, "batch_augment": None, "test_data": test}
        return replace(self.run.config.data, data=data, split=split, **without)

    def is_ready(self, images: AnySet) -> bool:
        """Whether a user's own code makes the inputs of the encoder."""
        return self.run.ready and isinstance(images, OwnSet)

    def with_views(self, images: AnySet) -> AnySet:
        """The same images with the augmentation of the run, if that is a user's."""
        if not isinstance(images, OwnSet):
            return images
        return replace(images, **own_functions(self.run.config.data))

    def _read(self, data: str, split: str) -> AnySet:
        if not is_own(data):
            skip = self.options.skip_unreadable
            return load(data, split, self.options.root, skip_unreadable=skip)
        found = load_images(self._own(data, split))
        if isinstance(found, OwnSet) and self.run.ready and found.prepare is None:
            return replace(found, prepare=nn.Identity())
        return found

    def obstacle(self, name: str, data: str) -> str:
        """Why a protocol does not apply to a set; empty if it does."""
        if name == "mi":
            return ""
        parts = [self.load(data, part) for part in ("train", "test")]
        if any(int(images.labels.min()) < 0 for images in parts):
            return (
                f"protocol={name!r} needs labels, and some samples of {data} have none; use mi, "
                "or a labelled set (--data)"
            )
        largest, (known, other) = int(parts[1].labels.max()), (one.classes for one in parts)
        # Classes without names are called 0, 1 and so on.
        differ = "0" not in (known[0], other[0]) and known[: len(other)] != other
        if largest >= len(known) or differ:
            has = f"classes {', '.join(other)}" if differ else f"class {largest}"
            return (
                f"protocol={name!r}: the test part of {data} has the {has}, and the training part "
                f"has {', '.join(known)}; number both alike"
            )
        if not self.is_ready(parts[0]):
            return ""
        own = f"and {data} has an augmentation or pairs of its own"
        if name in ("semi", "finetune", "transfer-finetune"):
            return f"protocol={name!r} fine-tunes on crops of images, {own}; use knn, linear or mi"
        for asked in ("size", "resize"):
            if value := getattr(self.options, asked):
                return f"{asked}={value} is for images that flatnce prepares, {own}; leave it out"
        return ""

    def features(self, data: str, part: str) -> Features:
        """Features of the training or test images of a set, on the device."""
        if (data, part) not in self.extracted:
            self.extracted[data, part] = self.extract(self.load(data, part))
        return self.extracted[data, part]

    def extract(self, images: AnySet) -> Features:
        """Features of some images, on the device."""
        workers = self.options.workers
        return extract(self.run.encoder.backbone, images, **self.input, workers=workers)

    def embed(self, images: AnySet, views: Views) -> tuple[Tensor, Tensor]:
        """Embeddings of two views of some images, on the device."""
        run, workers = self.run, self.options.workers
        return embed_views(run.encoder, images, views, run.channels, workers)

    def images(self, data: str) -> dict[str, Any]:
        """How the images of a set are prepared, for a result."""
        train = self.load(data, "train")
        if self.is_ready(train):
            return {"prepared_by": self.run.config.data.prepare or data}
        channels = conversion(train.shape[0], self.run.channels)
        resize = self.input["resize"] or self.input["size"]
        return {**self.input, "resize": resize, "channels": channels}


def missing_sets(names: Sequence[str], root: str | Path | None = None) -> dict[str, str]:
    """The sets that are not on disk, each with the reason; nothing is read."""
    missing: dict[str, str] = {}
    for name in names:
        try:
            if is_own(name):
                continue
            if is_path(name):
                whole = image_folder(name, "train")
                if _has_no_test(name):
                    _split_labels(whole, name)
                else:
                    image_folder(name, "test")
            elif (entry := find(name)).layouts:
                entry.present_layout(data_root(root))
        except MissingData as error:
            missing[name] = str(error)
    return missing


def _split_of(data: str, part: str) -> str:
    """The official part of a set; to train on, ``trainval`` if there is one."""
    known = not is_path(data) and not is_own(data)
    combined = part == "train" and known and "trainval" in find(data).splits
    return "trainval" if combined else part


def _has_no_test(data: str) -> bool:
    there = is_path(data) and (is_shards(data) or Path(data).expanduser().is_dir())
    return there and not has_part(data, "test")


def _split_labels(image_set: AnySet, data: str) -> tuple[Tensor, Tensor]:
    """Training and test images of a folder, by class; without labels as if of one class."""
    labels, classes = image_set.labels.cpu(), image_set.classes
    if int(labels.min()) < 0:
        labels, classes = torch.zeros_like(labels), ("the set",)
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    present = [(name, n) for name, n in zip(classes, counts, strict=True) if n]
    few = [f"{name} has {n}" for name, n in present if n < FEWEST]
    if len(present) == 1 and classes == image_set.classes:
        few = [f"it has one class, {present[0][0]}"]
    if few:
        place = data.rstrip("/")
        remedy = f"Put labelled images into {place}/train/CLASS and /val/CLASS"
        other = "`flatnce evaluate RUN --data NAME`"
        if is_own(data):
            remedy = "Train with test_data=module:name"
        if data.startswith(f"{OBJECT}:"):  # which no command has
            remedy = "Pass test_data=... to flatnce.train"
            other = "flatnce.pretrain.evaluation.evaluate_run(run, 'knn', ['NAME'])"
        raise ValueError(
            f"{data} has no test part (val or test), and a fifth of every class cannot be held "
            f"out instead ({', '.join(few[:3])}). {remedy}, or evaluate on another set: {other}"
        )
    return holdout(labels, SHARE, SEED)


Result = dict[str, Any]
Protocol = Callable[[Bench, str], Iterator[Result]]


def knn(bench: Bench, data: str) -> Iterator[Result]:
    """Weighted nearest neighbours, for each k."""
    train, test = bench.features(data, "train"), bench.features(data, "test")
    wanted = {min(k, len(train)): k for k in bench.options.neighbours}
    votes = knn_scores(train, test.features, tuple(wanted))
    for k, asked in wanted.items():
        protocol = {
            "name": f"knn, k = {k}" + ("" if k == asked else " (all training samples)"),
            "neighbours": k,
            "neighbours_asked": asked,
            "temperature": TEMPERATURE,
            "similarity": "cosine",
            "images": bench.images(data),
        }
        yield result(bench, "knn", data, votes[k], protocol)


def linear(
    bench: Bench, data: str, *, name: str = "linear", form: str | None = None
) -> Iterator[Result]:
    """The linear probe to convergence, or by gradient descent in one of its forms."""
    train, test = bench.features(data, "train"), bench.features(data, "test")
    options, title = bench.options, name
    how: dict[str, Any] = {"validation": options.validation, "seed": options.seed}
    if form is None:
        found = linear_probe(train, test, **how)
    else:
        config = replace(FORMS[form], **options.descent)
        found = probe_by_descent(train, test, config, **how)
        title += _unusual(config.epochs, FORMS[form].epochs)
    protocol = {"name": title, **found.protocol, "images": bench.images(data)}
    yield result(bench, name, data, found.scores, protocol)


def finetuned(bench: Bench, data: str, *, name: str) -> Iterator[Result]:
    """The whole network fine-tuned on all labels (Table S2)."""
    yield _finetune(bench, data, name, name)


def semi(bench: Bench, data: str) -> Iterator[Result]:
    """Fine-tuning on few labels, and the same architecture from random weights (Table S4)."""
    train, options = bench.load(data, "train"), bench.options
    fractions, left_out = options.fraction, ""
    if fractions is None:
        fractions, left_out = _usual_fractions(train.labels)
    for fraction in fractions:
        chosen = label_fraction(train.labels, fraction, options.seed)
        how = {"fraction": fraction, "draw": "stratified", "seed": options.seed}
        labels = {**how, "drawn": drawn(chosen), "of": len(train)}
        if left_out:
            labels["left_out"] = left_out
        for what in ("semi", "supervised"):
            title = f"{what}, {100 * fraction:g} % of labels"
            found = _finetune(bench, data, "semi", title, chosen, scratch=what == "supervised")
            found["protocol"]["labels"] = labels
            yield found


def _usual_fractions(labels: Tensor) -> tuple[tuple[float, ...], str]:
    """The paper's shares that leave every class a label, or the share that leaves it one.

    And in words, which of the paper's shares are left out and why; empty if none is.
    """
    counts = torch.bincount(labels.cpu())
    smallest = int(counts[counts > 0].min())
    least = math.ceil(500 / smallest) / 1000
    few = [f"{share:.0%}".replace("%", " %") for share in PAPER_SHARES if share < least]
    why = f"because the smallest class has {smallest} samples and would keep none"
    left_out = f"{' and '.join(few)} of the labels, {why}" if few else ""
    return tuple(share for share in PAPER_SHARES if share >= least) or (least,), left_out


def mi(bench: Bench, data: str) -> Iterator[Result]:
    """Mutual information of two views in a pool of test images, calibrated on training images."""
    seed = bench.options.seed
    # Other seeds than those of training.
    test, train = (bench.with_views(bench.load(data, part)) for part in ("test", "train"))
    views = replace(views_of(bench.run.config, bench.run.size, test), seed=2**32 + seed)
    pool = permutation(len(test), seed)[: bench.options.pool]
    others = permutation(len(train), seed)[: len(pool)]
    pairs = bench.embed(test.subset(pool), views)
    calibration = bench.embed(train.subset(others), views)
    found: dict[str, Any] = pool_information(*pairs, bench.temperature, calibration=calibration)
    if min(len(pool), len(others)) >= 20:  # the groups of the jackknife
        from flatnce.mi import embedding_information  # training must not load it

        answer = embedding_information(*pairs, calibration=calibration, seed=seed).plain()
        more = ("lower", "standard_error", "p_value", "readouts")
        found |= {name: answer[name] for name in more}
        found["flags"] = [flag["name"] for flag in answer["flags"]]
    protocol = {
        "name": "mi",
        "data": data,
        "measure": "InfoNCE's bound over the pool, in nats",
        "temperature": bench.temperature,
        "views": {name: getattr(views, name) for name in views.__dataclass_fields__},
        "pool": {**bench.part(data, "test"), **drawn(pool)},
        "chosen_on": {**bench.part(data, "train"), **drawn(others)},
        "channels": conversion(test.shape[0], bench.run.channels),
        "seed": seed,
    }
    yield {
        "name": "mi",
        "data": data,
        "measure": "mutual information, nats",
        **found,
        "test_images": len(pool),
        "protocol": protocol,
    }


PROTOCOLS: dict[str, Protocol] = {
    "knn": knn,
    "linear": linear,
    "linear-short": partial(linear, name="linear-short", form="short"),
    "linear-long": partial(linear, name="linear-long", form="long"),
    "semi": semi,
    "finetune": partial(finetuned, name="finetune"),
    "transfer-linear": partial(linear, name="transfer-linear", form="transfer"),
    "transfer-finetune": partial(finetuned, name="transfer-finetune"),
    "mi": mi,
}
"""Every protocol by its name: takes a bench and a data set, yields results."""


def _unusual(epochs: int, usual: int) -> str:
    """What the name of a protocol says about another number of epochs than its usual one."""
    return "" if epochs == usual else ", 1 epoch" if epochs == 1 else f", {epochs} epochs"


def _finetune(
    bench: Bench,
    data: str,
    name: str,
    title: str,
    chosen: Tensor | None = None,
    scratch: bool = False,
) -> Result:
    """Fine-tune on the training images, or on the chosen ones."""
    began = time.perf_counter()
    options, run = bench.options, bench.run
    train = bench.load(data, "train")
    model = run.config.override(pretrained=False).model
    example = torch.zeros(2, run.channels, run.size, run.size)
    # Photographs are resized before their centre is cut, to 256 pixels for 224.
    size = bench.input["size"]
    resize = options.resize or (size if size < 65 else round(size * 8 / 7))
    settings = {**bench.input, "resize": resize, **options.descent}
    if chosen is not None:  # the first rate is used if none can be chosen
        settings.setdefault("rates", (5e-4, 5e-5, 5e-3))
    elif name == "finetune" and len(train) <= FEW_IMAGES:
        settings.setdefault("rates", (5e-4,))
    if bench.is_trained_on(data):
        settings |= {"crop_least": run.config.views.crop_least, "flip": run.config.views.flip}
    config = FinetuneConfig(**settings, validation=options.validation, workers=options.workers)
    title += _unusual(config.epochs, FinetuneConfig.epochs)
    found = finetune(
        run.encoder.backbone,
        train if chosen is None else train.subset(chosen),
        bench.load(data, "test"),
        config,
        seed=options.seed,
        fresh=(lambda: build_encoder(model, example).backbone) if scratch else None,
        report=lambda line: bench.report(f"{title} on {data}: {line}"),
    )
    images = {**bench.images(data), "resize": resize}
    protocol = {"name": title, **found.protocol, "images": images}
    row = result(bench, name, data, found.scores, protocol)
    return {**row, "seconds": time.perf_counter() - began}


def result(bench: Bench, name: str, data: str, scores: Tensor, protocol: dict[str, Any]) -> Result:
    """The measures of scores on the test images, with their protocol."""
    labels = bench.load(data, "test").labels.to(scores.device)
    first = "top-1 of the first object listed (the paper's reading)"
    reading = first if data == "voc2007-top1" else "top-1"
    measures = measure(scores, labels, reading)
    parts = {part: bench.part(data, part) for part in ("train", "test")}
    # A result of images of another size does not replace the usual one.
    usual = {"size": bench.run.size, "resize": None}
    sizes = (f", {key} {bench.input[key]}" for key in usual if bench.input[key] != usual[key])
    title = "".join([protocol["name"], *sizes])
    return {
        "name": name,
        "data": data,
        **measures,
        "protocol": {**protocol, "name": title, "data": data, **parts},
    }


TRANSFER_SETS = ("cifar10", "cifar100", "voc2007-top1", "flowers102", "caltech101", "sun397")
"""The sets of the paper's Tables 3 and S2."""


def plan(
    names: Sequence[str], own: str, data: Sequence[str] = (), *, root: str | None = None
) -> list[tuple[str, str]]:
    """Which protocol on which set, checked before any work starts.

    Without ``data`` each protocol runs on the encoder's own set; those of transfer on the paper's
    list. One error names all sets that are missing on disk.
    """
    pairs: list[tuple[str, str]] = []
    for name in expand(names):
        usual = TRANSFER_SETS if name.startswith("transfer-") else (own,)
        pairs += [(name, one) for one in data or usual]
    sets = list(dict.fromkeys(one for _, one in pairs))
    missing = missing_sets(sets, root)
    if missing:
        raise MissingData(
            f"{len(missing)} of {len(sets)} data sets are missing: {', '.join(missing)}. "
            f"{next(iter(missing.values()))}; or name the sets that you have (--data)"
        )
    return pairs


def evaluate(
    bench: Bench, pairs: Sequence[tuple[str, str]], *, leave_out: bool = False
) -> Iterator[Result]:
    """Yield the results of a plan; set by set, so that the images of only one set are held.

    What does not apply to a set is an error, unless it is to be left out.
    """
    for data in dict.fromkeys(one for _, one in pairs):
        for name in (name for name, one in pairs if one == data):
            if obstacle := bench.obstacle(name, data):
                if leave_out:
                    continue
                raise ValueError(obstacle)
            bench.report(f"{name} on {data}")
            began = time.perf_counter()
            for found in PROTOCOLS[name](bench, data):
                # Of the whole protocol, unless the row has its own time.
                yield {"seconds": time.perf_counter() - began, **found}
        bench.sets.clear()
        bench.extracted.clear()


class NotSaved(OSError):
    """Results that could not be added to the file of their run; ``results`` has all of them."""

    results: list[Result]
    what: str  # which are not saved, where and why, without the remedy


def evaluate_run(
    directory: str | Path,
    protocols: str | Sequence[str],
    data: Sequence[str] = (),
    options: Options | None = None,
    *,
    step: int | None = None,
    device: str = "auto",
    report: Callable[[str], None] = lambda line: None,
    label: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a run and add every result to its ``results.json`` at once.

    Names, data sets and the checkpoint are checked before any work starts. If results cannot be
    saved, the :class:`NotSaved` that is raised at the end has them.

    Arguments:
        directory: The run.
        protocols: Names of :data:`PROTOCOLS`, ``transfer`` or ``all``.
        data: Sets to evaluate on; by default the run's own, and for transfer the paper's list.
        options: Settings of the protocols.
        step: Which checkpoint; the newest by default.
        device: Where to compute: ``auto``, or as torch spells it.
        report: Called with a line about what is being done.
        label: Returns additional entries for a result.
    """
    place = Path(directory)
    which = identity(place)  # before anything is read
    run = load_encoder(place, step, choose_device(device))
    record = read_run(place)
    lines = (line for line in logged_lines(place) if line.get("kind") == "train")
    logged = [line["temperature"] for line in lines if line.get("step", 0) <= run.step]
    temperature = float(logged[-1]) if logged and logged[-1] else None
    bench = Bench(run, options, report, temperature)
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    pairs = plan(names, bench.data, data, root=bench.options.root)
    found, unsaved = list[Result](), list[Result]()
    for result in evaluate(bench, pairs, leave_out="all" in names):
        if bench.is_trained_on(result["data"]):  # one name, from whichever folder
            result["data"] = result["protocol"]["data"] = record.settings["data"]
        result |= {"step": run.step, **(label(result) if label else {})}
        found.append(result)
        unsaved.append(result)
        try:
            while unsaved:
                add_evaluation(place, unsaved[0], which)
                del unsaved[0]
        except OSError as error:
            reason, full = error.strerror or str(error), error.errno in NO_ROOM
            bench.report(f"not saved ({reason}): {result}")
    if unsaved:
        lost = ", ".join(dict.fromkeys(one["name"] for one in unsaved))
        remedy = f"free space on the disk of {place}" if full else f"make {place} writable"
        what = f"{lost}: not saved in {place / RESULTS} ({reason})"
        failure = NotSaved(f"{what}; {remedy}, and evaluate again")
        failure.results, failure.what = found, what
        raise failure
    return found
