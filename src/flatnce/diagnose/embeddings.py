"""``flatnce.doctor(z1, z2)``: examine the embeddings of two views, given or read from a file."""

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.core.diagnostics.verdict import verdicts_on
from flatnce.diagnose.findings import Diagnosis, Finding, in_order
from flatnce.diagnose.measures import (
    GOOD_ESS,
    MOST_ROWS,
    MOST_SEARCHED,
    PRECISIONS,
    SEPARATION,
    Case,
    Neighbours,
    better_temperature,
    look_around,
    record_of,
    spread,
    survival,
)
from flatnce.diagnose.rules import REMEDIES, findings_on

DEFAULT_TEMPERATURE = 0.1
"""The default of the losses of this package."""

LAYOUTS = ("two_view", "two_tower")

ARRAYS = ("z1", "z2", "labels", "ids", "temperature", "batch_size")
"""What an archive may hold; z1 and z2 are required."""

TWINS_A_ROW = 0.02
"""Copies per row and batch that are reported: one row in fifty is pushed from itself. In a batch
of 256, one sample that occurs twice stays below."""

COPIED_VIEWS = 0.1
"""Share of positives that are copies of their anchor: pairs of short texts may have a few."""

FALSE_NEGATIVES_A_ROW = 0.1
"""Expected false negatives of a row that are reported. One such negative holds half of its row's
probability, so a tenth of a row's worth already reaches one anchor in ten."""

FALSE_WEIGHT = 0.5
"""With labels: same-label negatives carry more than this share of the weight. Their number alone
says little: ten even classes have a tenth of them in every healthy run."""

ALIVE = 0.7
"""Cosine of the gradient with the exact one, below which it is dead: there the error is as long
as what remains of the signal (the cosine of 45 degrees)."""

LOSS_SCALE = 2.0**16
"""What torch.amp.GradScaler starts with, which float16 is not used without."""


@runtime_checkable
class Array(Protocol):
    """NumPy's own arrays, a data frame's, another library's."""

    def __array__(self, dtype: Any = None) -> np.ndarray: ...


Embeddings: TypeAlias = Tensor | Array | Sequence[Sequence[float]]
"""Rows of floats, in whatever ``torch.as_tensor`` takes."""

Integers: TypeAlias = Tensor | Array | Sequence[int]
"""One integer per sample, in whatever ``torch.as_tensor`` takes."""


class DamagedArchive(OSError):
    """A file that is not a complete NumPy archive."""


@torch.no_grad()
def doctor(
    z1: Embeddings,
    z2: Embeddings,
    *,
    temperature: float | None = None,
    labels: Integers | None = None,
    ids: Integers | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    loss_scale: float | None = None,
    layout: str = "two_view",
    objective: str = "",
    subject: str = "embeddings",
) -> Diagnosis:
    """Say what is wrong with the embeddings of two views, and what to do about it.

    It looks for the kinds of finding in :data:`KINDS`, in that order.

    Arguments:
        z1: First views, (n, d), as the loss gets them: anything that ``torch.as_tensor`` takes.
        z2: Second views; row i is the positive of row i of ``z1``.
        temperature: Of the loss; without it 0.1 is used and no temperature is called wrong.
        labels: One class per sample, to count false negatives; negative ones are unknown.
        ids: One integer per sample: equal ones are known to be the same sample.
        batch_size: Samples of a training batch; by default all rows, or 2,048 of more.
        precision: Of the loss: ``float16``, ``bfloat16``, ``float32``; by default that of ``z1``.
        loss_scale: Of a gradient scaler; by default 65536 in float16 and 1 (none) elsewhere.
        layout: ``two_view`` (SimCLR) or ``two_tower`` (CLIP, retrieval).
        objective: The loss's name, for example ``InfoNCE``; remedies depend on it.
        subject: What the diagnosis calls it.

    Examples:
        >>> z = torch.randn(256, 64)
        >>> doctor(z, z + 0.9 * torch.randn(256, 64), temperature=0.2).verdict
        'healthy'
        >>> doctor(z, z.clone(), temperature=0.05).kinds
        ('identical views', 'saturated')
    """
    z1, z2 = _same_type(_tensor_of("z1", z1), _tensor_of("z2", z2))
    labels = None if labels is None else _tensor_of("labels", labels)
    ids = None if ids is None else _tensor_of("ids", ids)
    _check_rows(z1, z2, labels, ids)
    _check_options(z1, temperature, batch_size, precision, loss_scale, layout)
    usable = _usable_rows(z1, z2)
    found = _broken(z1, z2, usable)
    n = int(usable.sum())
    if n < 2:
        return Diagnosis(subject, tuple(found), {"samples": n}, judged=False)
    case = Case(
        z1[usable],
        z2[usable],
        None if ids is None else ids[usable].to(z1.device),
        None if labels is None else labels[usable].to(z1.device),
        temperature or DEFAULT_TEMPERATURE,
        min(batch_size or n, n),
        layout,
        objective,
    )
    named = precision or str(z1.dtype).removeprefix("torch.")
    return _examined(case, subject, named, temperature, batch_size, loss_scale, found)


def _examined(
    case: Case,
    subject: str,
    precision: str,
    temperature: float | None,
    batch_size: int | None,
    loss_scale: float | None,
    found: list[Finding],
) -> Diagnosis:
    """The diagnosis of usable rows, beside what was found wrong with the others."""
    numbers: dict[str, Any] = {"samples": len(case.z1), "width": case.z1.shape[1]}
    judged = case if batch_size is not None else case.drawn()
    found += _on_batches(judged, numbers, assumed=batch_size is None)
    kinds = {finding.kind for finding in found}
    found += _on_neighbours(replace(case, batch_size=judged.batch_size), numbers, kinds)
    found += _on_precision(judged, numbers, precision, loss_scale, kinds)
    if temperature is None:
        found = [finding for finding in found if not finding.kind.startswith("temperature")]
    unknown = _unknown(numbers, temperature, batch_size, len(judged.z1))
    return Diagnosis(subject, in_order(found), numbers, unknown)


def read_embeddings(path: str | Path) -> dict[str, Any]:
    """Arguments of :func:`flatnce.doctor` from an ``.npz`` file.

    Other arrays in it are not read. NumPy has no bfloat16: save such embeddings as float32 and
    pass ``precision="bfloat16"``.

    Arguments:
        path: Written by ``numpy.savez(path, z1=..., z2=...)``; may also hold ``labels``, ``ids``,
            ``temperature`` and ``batch_size``.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"{place} does not exist; name an .npz file with z1 and z2 in it")
    names, arrays = _arrays(place)
    missing = [name for name in ("z1", "z2") if name not in names]
    if missing:
        there = ", ".join(sorted(names)) or "nothing"
        raise ValueError(
            f"{place} holds {there}, but no {' and no '.join(missing)}; write it by "
            "numpy.savez(path, z1=..., z2=...)"
        )
    single = ("temperature", "batch_size")
    return {
        name: (_number if name in single else _array_tensor)(place, name, array)
        for name, array in arrays.items()
    }


def _arrays(place: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """All names in the archive, and the known arrays; others are not read."""
    try:
        # Opened here: numpy leaves the handle of an unreadable file open.
        with place.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            names = list(archive.files)
            return names, {name: archive[name] for name in ARRAYS if name in names}
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise DamagedArchive(
            f"{place} is not a NumPy archive that can be read without running code from it "
            f"({error}); write it by numpy.savez(path, z1=..., z2=...) from plain arrays"
        ) from error


def _array_tensor(place: Path, name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(
            f"{name} in {place} has dtype {array.dtype}; save plain floats or integers (bfloat16 "
            "as float32)"
        )
    return _tensor_of(name, array)


def _number(place: Path, name: str, array: np.ndarray) -> float | int:
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} in {place} has shape {array.shape} and dtype {array.dtype}; save one number"
        )
    value = float(array.item())
    if name != "batch_size":
        return value
    if not value.is_integer():
        raise ValueError(f"{name} in {place} is {value}; save a whole number")
    return int(value)


def _tensor_of(name: str, given: Embeddings | Integers) -> Tensor:
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Array):
        given = np.asarray(given)
        # Torch does not take another machine's byte order, negative strides or (without a
        # warning) read-only memory, nor all unsigned integers wider than a byte.
        kind = given.dtype.newbyteorder("=") if given.dtype.kind != "u" else np.dtype(np.int64)
        given = np.require(given, kind, ["C", "W"])
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} is a {type(given).__name__} that torch.as_tensor does not take ({error}); "
            "pass a torch.Tensor or a NumPy array of numbers"
        ) from error


def _same_type(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """Both views in the narrowest floating type that holds both."""
    if z1.dtype == z2.dtype or not (z1.is_floating_point() and z2.is_floating_point()):
        return z1, z2
    try:
        wider = torch.promote_types(z1.dtype, z2.dtype)
    except RuntimeError as error:  # float8 cannot be promoted
        raise ValueError(
            f"z1 is {z1.dtype} and z2 {z2.dtype}, which torch does not combine; pass one type"
        ) from error
    return z1.to(wider), z2.to(wider)


def _check_rows(z1: Tensor, z2: Tensor, labels: Tensor | None, ids: Tensor | None) -> None:
    for name, z in (("z1", z1), ("z2", z2)):
        if z.ndim != 2 or not z.is_floating_point() or z.shape[0] < 2 or z.shape[1] < 1:
            raise ValueError(
                f"{name} has shape {tuple(z.shape)} and dtype {z.dtype}; pass floating "
                "embeddings, (samples, width), at least 2 samples"
            )
    if z1.shape != z2.shape or z1.device != z2.device:
        raise ValueError(
            f"z1 is {tuple(z1.shape)} on {z1.device} and z2 {tuple(z2.shape)} on {z2.device}; row "
            "i of one is the positive of row i of the other, so they must agree"
        )
    n = z1.shape[0]
    for name, values in (("labels", labels), ("ids", ids)):
        if values is None:
            continue
        integer = not (values.is_floating_point() or values.is_complex())
        if values.shape != (n,) or not integer or values.dtype == torch.bool:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)} and dtype {values.dtype}; pass one "
                f"integer per sample, shape ({n},)"
            )


def _check_options(
    z1: Tensor,
    temperature: float | None,
    batch_size: int | None,
    precision: str | None,
    loss_scale: float | None,
    layout: str,
) -> None:
    for name, number in (("temperature", temperature), ("loss_scale", loss_scale)):
        if number is not None and not _is_positive(number):
            raise ValueError(f"{name}={number!r} must be a positive finite number")
    n = z1.shape[0]
    if batch_size is not None and not (isinstance(batch_size, Integral) and 2 <= batch_size <= n):
        raise ValueError(
            f"batch_size={batch_size!r} must be a whole number between 2 and the {n} "
            "samples given; pass more samples, or leave it out"
        )
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; choose one of {[*PRECISIONS]}")
    if precision is None and str(z1.dtype).removeprefix("torch.") not in PRECISIONS:
        raise ValueError(f"z1 has dtype {z1.dtype}; pass one of {[*PRECISIONS]}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {list(LAYOUTS)}")


def _is_positive(number: object) -> bool:
    if isinstance(number, Tensor):
        number = number.item() if number.numel() == 1 else None
    return isinstance(number, Real) and math.isfinite(number) and float(number) > 1e-30


def _usable_rows(z1: Tensor, z2: Tensor) -> Tensor:
    """Samples whose rows are both finite and not zero, in the loss's own float32."""
    norms = [
        torch.linalg.vector_norm(z.to(torch.promote_types(z.dtype, torch.float32)), dim=1)
        for z in (z1, z2)
    ]
    return (norms[0] * norms[1] > 0) & norms[0].isfinite() & norms[1].isfinite()


def _broken(z1: Tensor, z2: Tensor, usable: Tensor) -> list[Finding]:
    count = int((~usable).sum())
    if not count:
        return []
    finite = z1.isfinite().all(dim=1) & z2.isfinite().all(dim=1)
    evidence = (
        f"{count} of {len(usable)} samples cannot be normalised: {int((~finite).sum())} hold NaN "
        f"or infinite values, {int((finite & ~usable).sum())} are zero or overflow; the rest was "
        "judged without them"
    )
    return [Finding("broken rows", evidence, REMEDIES["broken rows"])]


def _on_batches(case: Case, numbers: dict[str, Any], *, assumed: bool) -> list[Finding]:
    """Findings on the row statistics, as a Monitor takes them."""
    record, half = record_of(case, case.temperature)
    numbers |= record
    numbers["negatives_for_half_gain"] = half
    numbers["temperature_for_good_ess"] = better = better_temperature(case)
    idle = None
    wrong = {"peaked", "uniform"} & {verdict.kind for verdict in verdicts_on([record])}
    if better is not None and wrong:
        # A wrong temperature hides whether anything was learned; a better one shows it.
        there, _ = record_of(case, better)
        idle = "not learning" in {verdict.kind for verdict in verdicts_on([there])}
    available = min(len(case.z1), case.z1.shape[1])
    found = findings_on([record], case.objective, available=available, idle=idle)
    return [_with_more(finding, numbers, case.batch_size, assumed) for finding in found]


def _with_more(
    finding: Finding, numbers: dict[str, Any], batch_size: int, assumed: bool
) -> Finding:
    """The finding without steps, which embeddings do not have, and with what they do show."""
    more, better = "", numbers["temperature_for_good_ess"]
    if finding.kind == "saturated" and (half := numbers["negatives_for_half_gain"]) < 1e9:
        more = f"; for a gain of 0.5 it would take about {half:,.0f} negatives per row"
    if finding.kind.startswith("temperature") and better is not None:
        more = f"; temperature {better:.2g} would give an ESS of {GOOD_ESS}"
        more += f", not {numbers['temperature']:.2g}"
        more += f" (of {MOST_SEARCHED:,} samples)" if batch_size > MOST_SEARCHED else ""
    if "collapse" in finding.kind and "uniformity_z2" in numbers:
        more = f"; uniformity is {numbers['uniformity_z1']:.2f} in z1 and "
        more += f"{numbers['uniformity_z2']:.2f} in z2, effective rank "
        more += f"{numbers['effective_rank_z1']:.1f} and {numbers['effective_rank_z2']:.1f}"
    if assumed and "collapse" not in finding.kind:
        more += f" (judged with {batch_size:,} samples as one batch, "
        more += f"{numbers['negatives']:,.0f} negatives per row)"
    return Finding(finding.kind, finding.evidence + more, finding.remedies)


def _on_neighbours(case: Case, numbers: dict[str, Any], kinds: set[str]) -> list[Finding]:
    rows = spread(len(case.z1), MOST_ROWS, case.z1.device)
    first, second = (normalize(z[rows].double(), dim=1) for z in (case.z1, case.z2))
    seen = look_around(
        first,
        second,
        rows if case.ids is None else case.ids[rows].long(),
        case.temperature,
        labels=None if case.labels is None else case.labels[rows].long(),
        batch_size=case.batch_size,
    )
    numbers |= {
        "twins_a_row": seen.twins,
        "copied_views": seen.copied,
        "separation": seen.separation,
        "false_negative_rate": seen.rate,
    }
    if seen.rate_by_label is not None:
        numbers["false_negative_rate_by_label"] = seen.rate_by_label
        numbers["false_negative_weight_by_label"] = seen.weight_by_label
    if "collapsed" in kinds:  # every row is then a copy of every other
        return []
    found = {
        "identical views": _identical_views(seen),
        "duplicates": _duplicates(seen),
        # In few dimensions neighbours are necessarily near.
        "false negatives": ""
        if "dimensional collapse" in kinds
        else _false_negatives(seen, numbers["negatives"]),
    }
    return [Finding(kind, words, REMEDIES[kind]) for kind, words in found.items() if words]


def _identical_views(seen: Neighbours) -> str:
    if seen.copied <= COPIED_VIEWS:
        return ""
    return (
        f"{seen.copied:.0%} of the positives are copies of their anchor: there is nothing to "
        "learn from pulling them together"
    )


def _duplicates(seen: Neighbours) -> str:
    if seen.twins <= TWINS_A_ROW:
        return ""
    copies = "copy" if f"{seen.twins:.2g}" == "1" else "copies"
    return (
        f"a row has {seen.twins:.2g} {copies} among the other samples of its batch, from which it "
        "is pushed away although it is the same"
    )


def _false_negatives(seen: Neighbours, negatives: float) -> str:
    near = seen.rate is not None and seen.rate * negatives > FALSE_NEGATIVES_A_ROW
    if not near and (seen.weight_by_label or 0.0) <= FALSE_WEIGHT:
        return ""
    said = []
    if seen.rate:  # a rate of 0 says nothing
        said.append(
            f"about {seen.rate:.1%} of the negatives, {seen.rate * negatives:.2g} per anchor, are "
            "as near as positives are (an estimate)"
        )
    if seen.weight_by_label is not None and seen.rate_by_label is not None:
        said.append(
            f"{seen.rate_by_label:.1%} of the negatives have their anchor's label and carry "
            f"{seen.weight_by_label:.0%} of the gradient's weight"
        )
    return "; ".join(said)


def _on_precision(
    case: Case, numbers: dict[str, Any], precision: str, scale: float | None, kinds: set[str]
) -> list[Finding]:
    if scale is None:
        scale = LOSS_SCALE if precision == "float16" else 1.0
    part = case.batches()[0]
    views = case.z1[part], case.z2[part]
    for name in PRECISIONS:
        if name == precision or name in ("float16", "bfloat16"):
            used = scale if name == precision else LOSS_SCALE if name == "float16" else 1.0
            numbers[f"survival_{name}"] = survival(
                *views, case.temperature, name, layout=case.layout, loss_scale=used
            )
    cosine = numbers[f"survival_{precision}"]
    # Where all rows are one, rounding is not the cause: the collapse is.
    if cosine is None or cosine >= ALIVE or (precision == "float32" and "collapsed" in kinds):
        return []
    scaled = ""
    if scale != 1:
        bare = survival(*views, case.temperature, precision, layout=case.layout)
        scaled = f" with a gradient scaler ({bare:.2f} without)"
    evidence = (
        f"the gradient computed in {precision} has a cosine of {cosine:.2f} with the exact "
        f"one{scaled}"
    )
    return [Finding(f"dead in {precision}", evidence, _remedies_of(precision))]


def _remedies_of(precision: str) -> tuple[str, ...]:
    """What to do about a gradient that does not survive a precision."""
    wider = [
        "compute rows, scores and loss in float32: flatnce's losses do so themselves; elsewhere "
        "`z.float()` before normalising, with autocast off"
    ]
    if precision == "float16":
        wider.append("keep a gradient scaler, or use bfloat16")
    return (
        *(wider if precision != "float32" else ()),
        "replace the loss by FlatNCE, whose gradient does not shrink with the positive's lead",
        "spread the embeddings first: batch normalisation at the end of the head, a longer "
        "warm-up",
    )


def _unknown(
    numbers: dict[str, Any], temperature: float | None, batch_size: int | None, judged: int
) -> tuple[str, ...]:
    said, n = [], numbers["samples"]
    if batch_size is None:
        which = f"all {n:,} samples" if judged == n else f"{judged:,} drawn with a fixed seed"
        said.append(
            f"the batch size was not given: {which} were judged as one batch, with "
            f"{numbers['negatives']:,.0f} negatives per row, more than in training if its batches "
            "are smaller; pass batch_size= (typed: --batch-size)"
        )
    if temperature is None:
        said.append(
            f"the temperature was not given: gain and ESS are those at {DEFAULT_TEMPERATURE}, and "
            "no temperature is called too high or too low; pass temperature= (typed: "
            "--temperature)"
        )
    if numbers["false_negative_rate"] is None:
        said.append(
            "the rate of false negatives: positives lie only "
            f"{numbers['separation']:.2f} spreads above the negatives, {SEPARATION:g} are needed"
        )
    if judged < n:
        said.append(f"gain, ESS and spread of all {n:,} samples: {judged:,} were examined")
    if n > MOST_ROWS:
        said.append(f"pairs of all {n:,} samples: {MOST_ROWS:,} of them were examined")
    return tuple(said)
