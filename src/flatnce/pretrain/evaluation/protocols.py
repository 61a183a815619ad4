"""Protocols: each takes a bench and a data set and yields results.

A result is a dictionary of plain data: ``name`` (the protocol), ``data``, the measures
(:mod:`flatnce.pretrain.evaluation.metrics`), ``seconds``, and ``protocol``, which has everything
needed to repeat it. ``protocol["name"]`` distinguishes the rows of one protocol, for example
``knn, k = 20``. Accuracies are between 0 and 1.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from flatnce.core.diagnostics import pool_information
from flatnce.messages import check_choice
from flatnce.pretrain.data import MissingData, label_fraction, label_list, permutation
from flatnce.pretrain.evaluation.bench import Bench, missing_sets
from flatnce.pretrain.evaluation.features import conversion, embed_views
from flatnce.pretrain.evaluation.finetune import FinetuneConfig, finetune
from flatnce.pretrain.evaluation.knn import TEMPERATURE, knn_scores
from flatnce.pretrain.evaluation.metrics import measure, measure_several
from flatnce.pretrain.evaluation.probe import FORMS, drawn, linear_probe, probe_by_descent

Result = dict[str, Any]
Protocol = Callable[[Bench, str], Iterator[Result]]


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


def by_descent(bench: Bench, data: str, *, name: str, form: str) -> Iterator[Result]:
    """The linear probe by gradient descent."""
    began = time.perf_counter()
    options, config = bench.options, FORMS[form]
    config = replace(
        config,
        epochs=options.epochs or config.epochs,
        batch_size=options.batch_size or config.batch_size,
        rates=options.rates or config.rates,
    )
    found = probe_by_descent(
        bench.features(data, "train"),
        bench.features(data, "test"),
        config,
        validation=options.validation,
        seed=options.seed,
    )
    protocol = {"name": name, **found.protocol, "images": bench.images(data)}
    yield result(bench, name, data, found.scores, protocol, began)


def finetuned(bench: Bench, data: str, *, name: str) -> Iterator[Result]:
    """The whole network fine-tuned on all labels (Table S2)."""
    yield _finetune(bench, data, name, name)


def semi(bench: Bench, data: str) -> Iterator[Result]:
    """Fine-tuning on few labels, and the same architecture from random weights (Table S4)."""
    train, options = bench.load(data, "train"), bench.options
    parts: list[tuple[str, dict[str, Any], Tensor]] = []
    if options.label_list is not None:
        listed = label_list(options.label_list, train)
        parts = [(f"{len(listed):,} labels listed", {"label_list": options.label_list}, listed)]
    for fraction in options.fraction if options.label_list is None else ():
        chosen = label_fraction(train.labels, fraction, options.seed)
        how = {"fraction": fraction, "draw": "stratified", "seed": options.seed}
        parts.append((f"{100 * fraction:g} % of labels", how, chosen))
    for label, how, chosen in parts:
        labels = {**how, "drawn": drawn(chosen), "of": len(train)}
        for start, what in (("pretrained", "semi"), ("scratch", "supervised")):
            found = _finetune(bench, data, "semi", f"{what}, {label}", chosen, start)
            found["protocol"]["labels"] = labels
            yield found


def mi(bench: Bench, data: str) -> Iterator[Result]:
    """Mutual information of two views of a test image, in nats, over a large pool.

    The pool is test images; its scale is chosen on training images. See
    :func:`flatnce.core.diagnostics.pool_information`.
    """
    began = time.perf_counter()
    subject, seed = bench.subject, bench.options.seed
    if subject.views is None:
        raise ValueError("protocol='mi' needs the views that the encoder was trained with")
    views = replace(subject.views, seed=2**32 + seed)  # other seeds than those of training
    test, train = (bench.load(data, part) for part in ("test", "train"))
    pool = permutation(len(test), seed)[: bench.options.pool]
    others = permutation(len(train), seed)[: len(pool)]
    pairs = [
        embed_views(
            subject.encoder, part.subset(chosen), views, subject.channels, bench.options.workers
        )
        for part, chosen in ((test, pool), (train, others))
    ]
    found: dict[str, Any] = pool_information(*pairs[0], subject.temperature, calibration=pairs[1])
    if min(len(pool), len(others)) >= 20:  # the groups of the jackknife
        from flatnce.mi import embedding_information  # training must not load it

        answer = embedding_information(*pairs[0], calibration=pairs[1], seed=seed).plain()
        more = ("lower", "standard_error", "p_value", "readouts")
        found |= {name: answer[name] for name in more}
        found["flags"] = [flag["name"] for flag in answer["flags"]]
    protocol = {
        "name": "mi",
        "data": data,
        "measure": "InfoNCE's bound over the pool, in nats",
        "temperature": subject.temperature,
        "views": {name: getattr(views, name) for name in views.__dataclass_fields__},
        "pool": {**bench.part(data, "test"), **drawn(pool)},
        "chosen_on": {**bench.part(data, "train"), **drawn(others)},
        "channels": conversion(test.shape[0], subject.channels),
        "seed": seed,
    }
    yield {
        "name": "mi",
        "data": data,
        "measure": "mutual information, nats",
        **found,
        "test_images": len(pool),
        "seconds": time.perf_counter() - began,
        "protocol": protocol,
    }


PROTOCOLS: dict[str, Protocol] = {
    "knn": knn,
    "linear": linear,
    "linear-short": partial(by_descent, name="linear-short", form="short"),
    "linear-long": partial(by_descent, name="linear-long", form="long"),
    "semi": semi,
    "finetune": partial(finetuned, name="finetune"),
    "transfer-linear": partial(by_descent, name="transfer-linear", form="transfer"),
    "transfer-finetune": partial(finetuned, name="transfer-finetune"),
    "mi": mi,
}
"""Every protocol by its name: takes a bench and a data set, yields results."""


def _finetune(
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
        rates=options.rates or ((5e-5,) if chosen is None else (5e-4, 5e-5, 5e-3)),
        **bench.augmentation(data),
        validation=options.validation,
        workers=options.workers,
    )

    found = finetune(
        subject.encoder.backbone,
        train if chosen is None else train.subset(chosen),
        bench.load(data, "test"),
        config,
        seed=options.seed,
        start=start,
        fresh=subject.fresh,
        report=lambda line: bench.report(f"{title} on {data}: {line}"),
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
        first = "top-1 of the first object listed (the paper's reading)"
        reading = first if data == "voc2007-top1" else "top-1"
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
"""The sets of the paper's Tables 3 and S2, with both readings of VOC2007."""


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """The protocols of some names, each once; ``transfer`` is both of its forms, ``all`` all."""
    known = [*PROTOCOLS, "transfer", "all"]
    found: list[str] = []
    for name in names:
        check_choice("protocol", name, known)
        if name == "transfer":
            found += ["transfer-linear", "transfer-finetune"]
        else:
            found += PROTOCOLS if name == "all" else [name]
    if not found:
        raise ValueError(f"protocol is empty; name one or more of {', '.join(known)}")
    return tuple(dict.fromkeys(found))


def wanted(names: Sequence[str], own: str, data: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Which protocol on which set, whether or not the set is there; see :func:`plan`."""
    pairs: list[tuple[str, str]] = []
    for name in expand(names):
        if "all" in names and name == "transfer-finetune" and name not in names:
            continue  # on the same set it equals finetune
        elsewhere = name.startswith("transfer-") and "all" not in names
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

    Without ``data`` each protocol runs on the encoder's own set; those of transfer, if they are
    named, on the paper's list. One error names all sets that are missing on disk.
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
        if name in ("knn", "semi") and one == "voc2007":
            raise ValueError(
                f"protocol={name!r} needs one class per image and voc2007 has several; take "
                "voc2007-top1"
            )
    return pairs


def evaluate(bench: Bench, pairs: Sequence[tuple[str, str]]) -> Iterator[Result]:
    """Yield the results of a plan; set by set, so that the images of only one set are held."""
    for data in dict.fromkeys(one for _, one in pairs):
        for name in (name for name, one in pairs if one == data):
            bench.report(f"{name} on {data}")
            yield from PROTOCOLS[name](bench, data)
        bench.forget(data)
