"""Protocols: each takes a bench and a data set and yields results.

A result is a dictionary of plain data: ``name`` (the protocol), ``data``, the measures
(:mod:`flatnce.pretrain.evaluation.metrics`), ``seconds``, and ``protocol``, which has everything
needed to repeat it. ``protocol["name"]`` distinguishes the rows of one protocol, for example
``knn, k = 20``. Accuracies are between 0 and 1.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from flatnce.pretrain.data import MissingData, label_fraction, label_list
from flatnce.pretrain.evaluation.bench import Bench, missing_sets, nearest
from flatnce.pretrain.evaluation.finetune import FinetuneConfig, FinetuneProgress, finetune
from flatnce.pretrain.evaluation.information import view_information
from flatnce.pretrain.evaluation.knn import TEMPERATURE, knn_scores
from flatnce.pretrain.evaluation.metrics import measure, measure_several
from flatnce.pretrain.evaluation.probe import drawn, linear_probe, probe_by_descent

__all__ = []

Result = dict[str, Any]

# The first is what is taken where no labelled image can be spared to choose on.
SEMI_RATES = (5e-4, 5e-5, 5e-3)
FIRST_OBJECT = "top-1 of the first object listed (the paper's reading)"


def knn(bench: Bench, data: str) -> Iterator[Result]:
    """Weighted nearest neighbours, for each k."""
    began = time.perf_counter()
    train, test = bench.features(data, "train"), bench.features(data, "test")
    wanted = {min(k, len(train)): k for k in bench.options.neighbours}
    votes = knn_scores(train, test.features, tuple(wanted))
    for k, asked in wanted.items():
        protocol = {
            "neighbours": k,
            "neighbours_asked": asked,
            "temperature": TEMPERATURE,
            "similarity": "cosine",
            "images": bench.images(data),
        }
        label = f"knn, k = {k}" + ("" if k == asked else " (all training images)")
        yield result(bench, "knn", data, votes[k], {"name": label, **protocol}, began)


def linear(bench: Bench, data: str) -> Iterator[Result]:
    """The linear probe, to convergence."""
    began = time.perf_counter()
    train, test = bench.features(data, "train"), bench.features(data, "test")
    options = bench.options
    found = linear_probe(train, test, validation=options.validation, seed=options.seed)
    protocol = {"name": "linear", **found.protocol, "images": bench.images(data)}
    yield result(bench, "linear", data, found.scores, protocol, began)


def linear_short(bench: Bench, data: str) -> Iterator[Result]:
    """The linear probe by a short gradient descent (Table 2)."""
    yield _by_descent(bench, data, "linear-short", "short")


def linear_long(bench: Bench, data: str) -> Iterator[Result]:
    """The linear probe by a long gradient descent with large batches (Table S3)."""
    yield _by_descent(bench, data, "linear-long", "long")


def transfer_linear(bench: Bench, data: str) -> Iterator[Result]:
    """The linear probe by Adam, without regularisation (Tables 3 and S2)."""
    yield _by_descent(bench, data, "transfer-linear", "transfer")


def whole(bench: Bench, data: str, name: str = "finetune") -> Iterator[Result]:
    """The whole network fine-tuned on all labels (Table S2)."""
    yield _finetuned(bench, data, name, name)


def transfer_finetune(bench: Bench, data: str) -> Iterator[Result]:
    """The same, on other sets than the encoder's own."""
    yield from whole(bench, data, "transfer-finetune")


def semi(bench: Bench, data: str) -> Iterator[Result]:
    """Fine-tuned on few labels, and the same architecture from scratch on the same (Table S4)."""
    train, options = bench.load(data, "train"), bench.options
    parts: list[tuple[str, dict[str, Any], Tensor]] = []
    if options.label_list is not None:
        listed = label_list(options.label_list, train)
        how: dict[str, Any] = {"label_list": options.label_list}
        parts.append((f"{len(listed):,} labels listed", how, listed))
    else:
        for fraction in options.fraction:
            chosen = label_fraction(train.labels, fraction, options.seed)
            how = {"fraction": fraction, "draw": "stratified", "seed": options.seed}
            parts.append((f"{100 * fraction:g} % of labels", how, chosen))
    for label, how, chosen in parts:
        labels = {**how, "drawn": drawn(chosen), "of": len(train)}
        for start, what in (("pretrained", "semi"), ("scratch", "supervised")):
            found = _finetuned(bench, data, "semi", f"{what}, {label}", chosen, start)
            found["protocol"]["labels"] = labels
            yield found


def mi(bench: Bench, data: str) -> Iterator[Result]:
    """Mutual information of two views of a test image, in nats, over a large pool."""
    yield view_information(bench, data)


PROTOCOLS: dict[str, Callable[[Bench, str], Iterator[Result]]] = {
    "knn": knn,
    "linear": linear,
    "linear-short": linear_short,
    "linear-long": linear_long,
    "semi": semi,
    "finetune": whole,
    "transfer-linear": transfer_linear,
    "transfer-finetune": transfer_finetune,
    "mi": mi,
}
"""Every protocol by its name: a bench and a data set to results, one after another."""


def _by_descent(bench: Bench, data: str, name: str, form: str) -> Result:
    began = time.perf_counter()
    options = bench.options
    found = probe_by_descent(
        bench.features(data, "train"),
        bench.features(data, "test"),
        form,
        epochs=options.epochs,
        batch_size=options.batch_size,
        rates=options.rates,
        validation=options.validation,
        seed=options.seed,
    )
    protocol = {"name": name, **found.protocol, "images": bench.images(data)}
    return result(bench, name, data, found.scores, protocol, began)


def _finetuned(
    bench: Bench,
    data: str,
    name: str,
    title: str,
    chosen: Tensor | None = None,
    start: str = "pretrained",
) -> Result:
    """Fine-tune on the training images, or on the chosen ones."""
    began = time.perf_counter()
    options, subject = bench.options, bench.subject
    train = bench.load(data, "train")
    config = FinetuneConfig(
        bench.size,
        bench.test_resize(),
        mean=subject.mean,
        std=subject.std,
        channels=subject.channels,
        epochs=options.epochs or 100,
        batch_size=options.batch_size or 512,
        rates=options.rates or ((5e-5,) if chosen is None else SEMI_RATES),
        **bench.augmentation(data),
        validation=options.validation,
        workers=options.workers,
    )

    def tell(now: FinetuneProgress) -> None:
        bench.report(f"{title} on {data}: {now}")

    found = finetune(
        subject.encoder.backbone,
        train if chosen is None else train.subset(chosen),
        bench.load(data, "test"),
        config,
        seed=options.seed,
        start=start,
        fresh=subject.fresh,
        report=tell,
    )
    return result(bench, name, data, found.scores, {"name": title, **found.protocol}, began)


def result(
    bench: Bench, name: str, data: str, scores: Tensor, protocol: dict[str, Any], began: float
) -> Result:
    """The measures of scores on the test images, with their protocol."""
    test, each = bench.load(data, "test"), bench.options.per_class
    labels = test.labels.to(scores.device)
    if labels.ndim == 2:
        measures = measure_several(
            scores, labels, classes=test.classes, per_class=each, seed=bench.options.seed
        )
    else:
        reading = FIRST_OBJECT if data == "voc2007-top1" else "top-1"
        measures = measure(scores, labels, classes=test.classes, per_class=each, name=reading)
    parts = {part: bench.part(data, part) for part in ("train", "test")}
    return {
        "name": name,
        "data": data,
        **measures,
        "seconds": time.perf_counter() - began,
        "protocol": {**protocol, "data": data, **parts},
    }


TRANSFER_SETS = (
    "cifar10",
    "cifar100",
    "voc2007",
    "voc2007-top1",
    "flowers102",
    "caltech101",
    "sun397",
)
"""Those of the paper's Tables 3 and S2, VOC2007 in both readings."""

TOGETHER = {"transfer": ("transfer-linear", "transfer-finetune")}
ALL = "all"
ONE_CLASS = ("knn", "semi")


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """The protocols that some names stand for, each once; unknown ones get a suggestion.

    Arguments:
        names: Names of :data:`PROTOCOLS`, ``transfer`` (both of its forms) or ``all``.

    Examples:
        >>> expand(["transfer", "knn"])
        ('transfer-linear', 'transfer-finetune', 'knn')
    """
    known = [*PROTOCOLS, *TOGETHER, ALL]
    found: list[str] = []
    for name in names:
        if name not in known:
            raise ValueError(
                f"protocol={name!r} is unknown; {nearest(name, known)}There are {', '.join(known)}"
            )
        found += PROTOCOLS if name == ALL else TOGETHER.get(name, (name,))
    if not found:
        raise ValueError(f"protocol is empty; name one or more of {', '.join(known)}")
    return tuple(dict.fromkeys(found))


def wanted(names: Sequence[str], own: str, data: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Which protocol on which set, whether or not the set is there; see :func:`plan`."""
    pairs: list[tuple[str, str]] = []
    for name in expand(names):
        if ALL in names and name == "transfer-finetune" and name not in names:
            continue  # on the same sets it is what finetune is
        elsewhere = name.startswith("transfer-") and ALL not in names
        pairs += [(name, one) for one in data or (TRANSFER_SETS if elsewhere else (own,))]
    return pairs


def plan(
    names: Sequence[str],
    own: str,
    data: Sequence[str] = (),
    *,
    root: str | None = None,
    skip_missing: bool = False,
) -> list[tuple[str, str]]:
    """Which protocol on which set, checked before any work starts.

    Without ``data`` each protocol is run on the encoder's own set; those of transfer, where they
    are named, on the paper's list. What is missing on disk is one error that names all of it.

    Arguments:
        names: As in :func:`expand`.
        own: The set the encoder was trained on.
        data: Sets to evaluate on instead.
        root: Where data sets lie.
        skip_missing: Leave out what is missing instead.
    """
    pairs = wanted(names, own, data)
    sets = list(dict.fromkeys(one for _, one in pairs))
    missing = missing_sets(sets, root)
    if missing and not (skip_missing and len(missing) < len(sets)):
        named = ", ".join(missing)
        raise MissingData(
            f"{len(missing)} of {len(sets)} data sets are missing: {named}. "
            f"{next(iter(missing.values()))}"
            + ("" if skip_missing else "; or leave the missing out (--skip-missing)")
        )
    pairs = [(name, one) for name, one in pairs if one not in missing]
    for name, one in pairs:
        if name in ONE_CLASS and one == "voc2007":
            raise ValueError(
                f"protocol={name!r} needs one class an image and voc2007 has several; take "
                "voc2007-top1"
            )
    return pairs


def evaluate(bench: Bench, pairs: Sequence[tuple[str, str]]) -> Iterator[Result]:
    """The results of a plan, one at a time as they are done.

    Arguments:
        bench: What is evaluated and how.
        pairs: Protocol and data set, as :func:`plan` gives them.
    """
    # Set by set, so that images and features are made once and let go of.
    for data in dict.fromkeys(one for _, one in pairs):
        for name in (name for name, one in pairs if one == data):
            bench.report(f"{name} on {data}")
            yield from PROTOCOLS[name](bench, data)
        bench.forget(data)
