"""The page of one training run: verdict and key numbers, curves, evaluations, provenance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatnce.pretrain.page.run_figures import CHARTS, ceiling_label, curves_of
from flatnce.pretrain.page.run_portrait import portrait_of, portrait_pictures, portrait_sections
from flatnce.pretrain.page.settings import flat
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.pretrain.runs.scores import score_cells
from flatnce.report.names import OBJECTIVES, opened
from flatnce.report.page import Page, Paragraph, Section, Table, write_page
from flatnce.report.pictured import Curves, Scattered
from flatnce.report.provenance import origin_of

__all__ = ["page_of_run", "pictures_of_run", "run_page"]


def run_page(directory: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a training run and return its path.

    An unfinished run gets a page of what it has measured so far, which says so.

    Arguments:
        directory: Written by ``flatnce train``.
        out: The file; by default ``report.html`` in the directory.
    """
    page = page_of_run(directory)
    return write_page(page, Path(directory) / "report.html" if out is None else Path(out))


def page_of_run(directory: str | Path) -> Page:
    """The page of a training run."""
    run = read_run(directory)
    if run.kind != "train":
        raise ValueError(
            f"directory={str(directory)!r} is a run of kind {run.kind!r}; this page is for runs "
            "of `flatnce train`"
        )
    settings, portrait = flat(run.config), portrait_of(run.directory)
    sections = [
        Section("Verdict", _verdict(run)),
        Section("Key numbers", table=_key(run, (portrait or {}).get("memory"))),
    ]
    evaluations = (run.results or {}).get("evaluations") or []
    if evaluations:
        watched = _NOT_THE_RESULT if _last(run, "watch").get("knn") is not None else ""
        prose = [Paragraph(_TOWARDS_TEST + watched, "The result")]
        sections.append(Section("Evaluations", prose, _scores(evaluations)))
    curves = _curves(run)
    if curves:
        figures = [chart.figure() for chart in curves]
        sections.append(Section("During training", figures=figures))
    sections += portrait_sections(portrait, run.directory.name)
    rows = [(name, _shown(value)) for name, value in settings.items()]
    config = Table("Every setting of this run", ["Setting", "Value"], rows)
    sections.append(Section("Configuration", table=config, folded=True))
    return Page(f"Training run {run.directory.name}", _lead(run, settings), sections, _facts(run))


def pictures_of_run(directory: str | Path) -> list[Curves | Scattered]:
    """Every chart of a training run's page, before it is drawn."""
    run = read_run(directory)
    portrait = portrait_of(run.directory)
    return [*_curves(run), *(portrait_pictures(portrait) if portrait else [])]


def _curves(run: Run) -> list[Curves]:
    last = {**_last(run, "watch"), **_last(run, "train")}
    every = (curves_of(chart, run.metrics, ceiling_label(last, chart)) for chart in CHARTS)
    return [chart for chart in every if chart is not None]


# Of a verdict that changes all the time, the page lists the newest.
MOST_VERDICTS = 20

_TOWARDS_TEST = (
    "These are the results to quote, each with its protocol and step: they are on test images. "
    "Choices inside a protocol were made on a validation split. results.json holds "
    "the whole protocol of each."
)
_NOT_THE_RESULT = (
    " kNN among the key numbers and during training is of held-out training images, for watching "
    "the run: not a result."
)


def _lead(run: Run, settings: Mapping[str, Any]) -> str:
    train = _last(run, "train")
    objective = OBJECTIVES.get(settings.get("objective", ""), settings.get("objective", "?"))
    what = (
        f"Backbone {settings.get('backbone', '?')}, trained on {settings.get('data', 'images')} "
        f"with {objective} at batch size {settings.get('batch_size', '?')}"
    )
    if train.get("negatives"):
        what += f": every image has {train['negatives']:,.0f} negatives"
    if not _finished(run):
        reached = f"epoch {train['epoch']:.2f}" if train.get("epoch") is not None else "no epoch"
        return (
            f"Unfinished: this page shows what was measured until {reached} of "
            f"{settings.get('epochs', '?')}. {what}."
        )
    return f"{what}. {settings.get('epochs', '?')} epochs."


def _verdict(run: Run) -> list[Paragraph]:
    """The last word first; then, where it changed on the way, each that was said."""
    said = [record for record in run.metrics if record.get("kind") == "verdict"]
    last = (run.results or {}).get("verdict")
    if last:
        history = said if len(said) > 1 else []
        first = Paragraph(f"{opened(last)}.", "At the end")
    elif said:
        *history, newest = said
        # It was said when it changed; the numbers have moved on since.
        first = _finding(newest, f"So far, with the numbers of step {newest['step']:,}")
    else:
        return [Paragraph("None was given: too little was measured.")]
    newer = history[-MOST_VERDICTS:]
    older = [_finding(record, f"From step {record['step']:,} on") for record in reversed(newer)]
    left = len(history) - len(newer)
    rest = [Paragraph(f"{left:,} more are in metrics.jsonl.", "Before")] if left else []
    return [first, *older, *rest]


def _finding(record: Mapping[str, Any], topic: str) -> Paragraph:
    since = f"since step {record['since']:,}" if record.get("since") is not None else ""
    text = f"{record['verdict']} {since}".strip()
    text = f"{text}: {record['evidence']}." if record.get("evidence") else f"{text}."
    if record.get("remedies"):
        text += f" Do one of: {'; '.join(record['remedies'])}."
    return Paragraph(opened(text), topic)


def _key(run: Run, memory: Mapping[str, int] | None) -> Table:
    """The last numbers, each beside what it can reach at most; only what was measured."""
    train, watch, results = _last(run, "train"), _last(run, "watch"), run.results or {}
    speed = results.get("images_per_second") or train.get("images_per_second")
    seconds = results.get("seconds") or train.get("seconds")
    rows = [
        (
            "kNN at the last watch (held-out training images, not a result)",
            _percent(watch.get("knn")),
            "100 %",
        ),
        ("Loss, on InfoNCE's scale", _nats(train.get("loss")), ""),
        (
            "K-sample MI",
            _nats(train.get("mi")),
            _nats(train.get("mi_ceiling")),
        ),
        (
            "Large-pool MI, best scale",
            _nats(watch.get("pool_mi")),
            _nats(watch.get("pool_ceiling")),
        ),
        (
            "Large-pool MI, temperature of training",
            _nats(watch.get("pool_mi_at_temperature")),
            _nats(watch.get("pool_ceiling")),
        ),
        ("ESS, share of the negatives", _share(train.get("ess")), "1"),
        (
            "ESS with the positive, share of candidates",
            _share(train.get("ess_with_positive")),
            "1",
        ),
        ("Gradient gain", _share(train.get("gain")), "1"),
        ("Saturated rows", _percent(train.get("saturated")), "100 %"),
        ("Positive found among the candidates", _percent(train.get("top1")), "100 %"),
        ("Effective rank of the embeddings", _share(train.get("effective_rank")), ""),
        ("Temperature", _share(train.get("temperature")), ""),
        (
            "Images a second"
            + (", everything included" if results.get("images_per_second") else ""),
            f"{speed:,.0f}" if speed else "",
            "",
        ),
        ("Time", _time(seconds), ""),
        ("Memory of training, estimated", _bytes(sum(memory.values())) if memory else "", ""),
    ]
    steps = f"{train['step']:,} steps" if "step" in train else "no step"
    return Table(
        f"After {steps}; the most each can be at the right",
        ["Measure", "Value", "At most"],
        [row for row in rows if row[1]],
    )


def _scores(evaluations: list[Mapping[str, Any]]) -> Table:
    names = ["Protocol", "Data", "Step", "Score", "95 % interval", "Top-5", "Test images"]
    return Table("On test images", names, [_score(result) for result in evaluations])


def _score(result: Mapping[str, Any]) -> tuple[str, ...]:
    cells, step = score_cells(result), result.get("step")
    at = "" if step is None else f"{step:,}"
    return (
        cells.name,
        cells.data,
        at,
        cells.said,
        cells.interval,
        cells.top5,
        cells.test_images,
    )


def _facts(run: Run) -> dict[str, str]:
    seeds = run.environment.get("seeds") or [flat(run.config).get("seed")]
    return {
        **origin_of(run.environment),
        "Seed": ", ".join(str(seed) for seed in seeds),
        "State": "finished" if _finished(run) else "unfinished",
    }


def _finished(run: Run) -> bool:
    """Whether it went to the end; results may also hold evaluations of an unfinished run."""
    return run.results is not None and "step" in run.results


def _last(run: Run, kind: str) -> dict[str, Any]:
    return next((r for r in reversed(run.metrics) if r.get("kind") == kind), {})


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} nats"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
