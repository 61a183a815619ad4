"""``flatnce.doctor(z1, z2)``: examine the embeddings of two views, given or read from a file."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.core.contrast import contrast_of, importance_weights
from flatnce.core.diagnostics import Monitor, Snapshot, temperature_for_ess
from flatnce.core.diagnostics.geometry import mean_potential, rank_of_gram
from flatnce.core.diagnostics.verdict import verdicts_on
from flatnce.core.objectives.registry import ess_target
from flatnce.core.pairs import Pairs, check_integers, two_tower, two_view
from flatnce.diagnose.findings import Diagnosis, Finding, finding, in_order, not_known
from flatnce.diagnose.rules import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE, findings_on
from flatnce.environment import memory_of_machine
from flatnce.files import open_plain
from flatnce.messages import check_choice, check_positive

LAYOUTS: dict[str, Any] = {"two_view": two_view, "two_tower": two_tower}
DEFAULT_TEMPERATURE = 0.1  # of the losses of this package

# One row in fifty is pushed from itself; one sample twice in a batch of 256 stays below.
TWINS_A_ROW = 0.02
# Share of positives that are copies of their anchor: pairs of short texts may have a few.
COPIED_VIEWS = 0.1
# Unit rows nearer than this are copies: above what float32 leaves of one input embedded twice.
SAME = 1e-4
# One false negative holds half of its row's probability: this reaches one anchor in ten.
FALSE_NEGATIVES_A_ROW = 0.1
# Share of the weight of same-label negatives; ten even classes have a tenth in healthy runs.
FALSE_WEIGHT = 0.5
# Spreads between positives and the negatives' median. Real negatives have a heavier tail than the
# normal distribution: at 3.0 to 3.2 repeated images made no difference to the rate.
SEPARATION = 4.0

# Bounds of the cost: samples whose pairs are all compared; that are judged as one batch if no
# batch size is given; in the search of a better temperature, which computes all scores 41 times;
# and the side of the largest matrix whose eigenvalues are computed.
MOST_ROWS = 4096
MOST_TOGETHER = 2048
MOST_SEARCHED = 512
LARGEST_GRAM = 2048


@dataclass(frozen=True)
class Case:
    """The checked arguments of the doctor, without broken rows."""

    z1: Tensor
    z2: Tensor
    ids: Tensor | None
    labels: Tensor | None
    temperature: float
    batch_size: int
    layout: str
    objective: str

    def batches(self) -> list[slice]:
        """Whole batches; the rest, which has fewer negatives, is left out."""
        size = self.batch_size
        return [slice(start, start + size) for start in range(0, len(self.z1) - size + 1, size)]

    def pairs(self, part: slice) -> Pairs | tuple[Pairs, ...]:
        """The pairs of a batch."""
        ids = None if self.ids is None else self.ids[part]
        return LAYOUTS[self.layout](self.z1[part], self.z2[part], ids=ids)

    def of(self, rows: Tensor) -> "Case":
        """The case of some of the samples, as one batch."""
        arrays = {name: getattr(self, name) for name in ("z1", "z2", "ids", "labels")}
        chosen = {name: one[rows] for name, one in arrays.items() if one is not None}
        return replace(self, batch_size=len(rows), **chosen)


@torch.no_grad()
def doctor(
    z1: Any,
    z2: Any,
    *,
    temperature: float | None = None,
    labels: Any = None,
    ids: Any = None,
    batch_size: int | None = None,
    layout: str = "two_view",
    objective: str | nn.Module = "",
    subject: str = "embeddings",
) -> Diagnosis:
    """Diagnose the embeddings of two views: what is wrong with them, and what to do about it.

    It looks for the kinds of finding in :data:`KINDS`, in that order.

    Arguments:
        z1: First views, (n, d), as the loss gets them: anything that ``torch.as_tensor`` takes.
        z2: Second views; row i is the positive of row i of ``z1``.
        temperature: That of the loss; without it 0.1 is used, and the temperature is not judged.
        labels: One class per sample, to count false negatives; negative ones are unknown.
        ids: One integer per sample: equal ones are known to be the same sample.
        batch_size: Samples of a training batch; by default all rows, or 2,048 of more.
        layout: ``two_view`` (SimCLR) or ``two_tower`` (CLIP, retrieval).
        objective: The loss or its name, for example ``InfoNCE``; remedies depend on it. A loss
            also gives its temperature.
        subject: The name of the embeddings in the diagnosis.

    Examples:
        >>> z = torch.randn(256, 64)
        >>> doctor(z, z.clone(), temperature=0.05).kinds
        ('identical views', 'saturated')
    """
    objective, temperature = _of_loss(objective, temperature)
    one, two = _tensor_of("z1", z1), _tensor_of("z2", z2)
    _check_rows(one, two)
    wider = torch.promote_types(one.dtype, two.dtype)
    one, two = one.to(wider), two.to(wider)
    classes = None if labels is None else _integers("labels", labels, one)
    same = None if ids is None else _integers("ids", ids, one)
    _check_numbers(len(one), temperature, batch_size)
    check_choice("layout", layout, LAYOUTS)

    # Samples whose rows are both finite and not zero, in the loss's own float32.
    wide = torch.promote_types(one.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(z.to(wide), dim=1) for z in (one, two)]
    usable = (norms[0] * norms[1] > 0) & norms[0].isfinite() & norms[1].isfinite()
    n, found = int(usable.sum()), []
    if count := len(usable) - n:
        lost = int((~(one.isfinite() & two.isfinite()).all(dim=1)).sum())
        kinds: dict[str, Any] = {"count": count, "not_finite": lost, "others": count - lost}
        found.append(finding("broken rows", samples=len(usable), **kinds))
    if n < 2:
        return Diagnosis(subject, tuple(found), {"samples": n}, judged=False)
    known = float(temperature or DEFAULT_TEMPERATURE), min(batch_size or n, n)
    whole = Case(one, two, same, classes, *known, layout, objective)
    case = replace(whole.of(usable.nonzero()[:, 0]), batch_size=known[1])
    if batch_size is None and n > MOST_TOGETHER:  # the same ones every time
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        case = case.of(order[:MOST_TOGETHER].sort().values.to(case.z1.device))
    numbers: dict[str, Any] = {"samples": n, "width": one.shape[1]}
    found += _on_batches(case, numbers)
    found += _on_neighbours(case, numbers, {one.kind for one in found})
    if temperature is None:
        found = [one for one in found if not one.kind.startswith("temperature")]
    unknown = _unknown(numbers, temperature is None, batch_size is None, len(case.z1))
    return Diagnosis(subject, in_order(found), numbers, unknown)


def _of_loss(objective: Any, temperature: float | None) -> tuple[str, float | None]:
    """The name of an objective, and its temperature if none was given and it holds one."""
    if isinstance(objective, str):
        return objective, temperature
    if not isinstance(objective, nn.Module):
        raise ValueError(f"objective={objective!r} is not an objective; pass a loss or its name")
    loss = getattr(objective, "_orig_mod", objective)  # within torch.compile
    name, held = type(loss).__name__, cast(Any, getattr(loss, "temperature", None))
    one_number = isinstance(held, Real) or (isinstance(held, Tensor) and held.numel() == 1)
    return name, float(held) if temperature is None and one_number else temperature


def _check_numbers(n: int, temperature: float | None, batch_size: int | None) -> None:
    if temperature is not None:
        one_number = isinstance(temperature, Tensor) and temperature.numel() == 1
        check_positive("temperature", float(temperature) if one_number else temperature)
    if batch_size is not None and not (isinstance(batch_size, Integral) and 2 <= batch_size <= n):
        raise ValueError(
            f"batch_size={batch_size!r} must be a whole number between 2 and the {n} "
            "samples given; pass more samples, or leave it out"
        )


def read_embeddings(path: str | Path) -> dict[str, Any]:
    """Arguments of :func:`flatnce.doctor` from an ``.npz`` file of z1 and z2.

    It may also hold ``labels``, ``ids``, ``temperature`` and ``batch_size``; other arrays are not
    read. NumPy has no bfloat16: save such embeddings as float32.
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist; name an .npz file with z1 and z2 in it")
    names = ("z1", "z2", "labels", "ids", "temperature", "batch_size")
    with open_plain(place) as file:  # numpy leaves the handle of an unreadable file open
        try:
            archive = np.lib.npyio.NpzFile(file, allow_pickle=False)  # type: ignore[call-arg]
            there = ", ".join(sorted(archive.files)) or "nothing"
            wanted = [name for name in names if name in archive.files]
            # No more is read of a member than its header says, of a compressed one either.
            sizes = {one.filename: one.file_size for one in ZipFile(file).infolist()}
            size = sum(sizes[f"{name}.npy"] for name in wanted)
            if size > (most := memory_of_machine()):
                raise MemoryError(f"{size / 1e9:,.0f} GB into {most / 1e9:,.0f} GB")
            arrays = {name: archive[name] for name in wanted}
        except MemoryError as error:
            said = f"{place} does not fit into memory ({error}); save fewer rows"
            raise OSError(said) from error
        except Exception as error:  # damaged or encrypted files can raise anything
            raise ValueError(
                f"{place} is not a NumPy archive that can be read without running code from it "
                f"({error}); name a run of flatnce train, or write embeddings from plain arrays "
                "by numpy.savez(path, z1=..., z2=...). Logs of other tools cannot be read; "
                "docs/howto/saturated.md has a rule for a loss curve"
            ) from error
    if not {"z1", "z2"} <= set(arrays):
        raise ValueError(
            f"{place} holds {there}, not both z1 and z2; write it by "
            "numpy.savez(path, z1=..., z2=...)"
        )
    return {
        name: array.item() if array.size == 1 else _tensor_of(name, array)
        for name, array in arrays.items()
    }


# --- Checks --------------------------------------------------------------------------------------


def _tensor_of(name: str, given: Any) -> Tensor:
    try:
        if hasattr(given, "__array__") and not isinstance(given, Tensor):
            array = np.asarray(given)
            kind = np.dtype(np.int64) if array.dtype.kind == "u" else array.dtype
            # Torch takes neither another byte order, negative strides nor read-only memory.
            return torch.as_tensor(np.require(array, kind.newbyteorder("="), ["C", "W"]))
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        then = f"pass a torch.Tensor or a NumPy array of numbers ({error})"
        if name in ("labels", "ids"):
            then = f"number them, for example by numpy.unique({name}, return_inverse=True)[1]"
        raise ValueError(
            f"{name} has type {type(given).__name__}, which torch.as_tensor does not take; {then}"
        ) from error


def _check_rows(z1: Tensor, z2: Tensor) -> None:
    for name, z in (("z1", z1), ("z2", z2)):
        if z.ndim != 2 or not z.is_floating_point() or z.shape[0] < 2 or z.shape[1] < 1:
            raise ValueError(
                f"{name} has shape {tuple(z.shape)} and dtype {z.dtype}; pass floating "
                "embeddings, (samples, width), at least 2 samples"
            )
    if z1.shape != z2.shape or z1.device != z2.device:
        raise ValueError(
            f"z1 is {tuple(z1.shape)} on {z1.device} and z2 {tuple(z2.shape)} on {z2.device}; row "
            "i of one is the positive of row i of the other, so the shapes and devices must agree"
        )


def _integers(name: str, given: Any, z1: Tensor) -> Tensor:
    values = _tensor_of(name, given)
    check_integers(name, values, len(z1))
    return values.to(z1.device).long()


# --- Batches: the numbers of a Monitor, and a better temperature ---------------------------------


def _spread(n: int, most: int, device: torch.device) -> Tensor:
    """Indices of at most so many of n samples, evenly spread."""
    return torch.linspace(0, n - 1, min(n, most), device=device).round().long()


def _on_batches(case: Case, numbers: dict[str, Any]) -> list[Finding]:
    """Findings on the row statistics, as a Monitor takes them."""
    record = record_of(case, case.temperature)
    numbers |= record
    # The temperature of a good ESS holds for any batch size.
    pairs = case.of(_spread(len(case.z1), MOST_SEARCHED, case.z1.device)).pairs(slice(None))
    enough = float(contrast_of(pairs, 1.0).count.max()) >= 2
    better = float(temperature_for_ess(pairs, ess_target(case.objective))) if enough else None
    numbers["temperature_for_good_ess"] = better if case.layout == "two_view" else None
    idle = None
    wrong = {"peaked", "uniform"} & {verdict.kind for verdict in verdicts_on([record])}
    if better is not None and wrong:
        # A wrong temperature hides whether anything was learned; a better one shows it.
        there = verdicts_on([record_of(case, better)])
        idle = "not learning" in {verdict.kind for verdict in there}
    available = min(len(case.z1), case.z1.shape[1])
    found = findings_on([record], case.objective, case.layout, available=available, idle=idle)
    return [_with_more(one, numbers, case) for one in found]


def _with_more(one: Finding, numbers: dict[str, Any], case: Case) -> Finding:
    """The finding without steps, which embeddings do not have, and with what they do show."""
    more, good, better = "", ess_target(case.objective), numbers["temperature_for_good_ess"]
    ends = LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE
    if one.kind.startswith("temperature") and better is not None:
        more = f"; temperature {better:.2g} would give an ESS of {good}"
        if not ends[0] <= better <= ends[1]:
            more = f"; no temperature from {ends[0]:g} to {ends[1]:g} gives an ESS of {good}"
            far = better < ends[0] if one.kind == "temperature too high" else better > ends[1]
            one = replace(one, remedies=one.remedies[far:])
    if "collapse" in one.kind and "uniformity_z2" in numbers:
        more = f"; uniformity is {numbers['uniformity_z1']:.2f} in z1 and "
        more += f"{numbers['uniformity_z2']:.2f} in z2"
    return replace(one, evidence=one.evidence + more, since=None)


def record_of(case: Case, temperature: float) -> dict[str, Any]:
    """A Monitor's numbers over the batches.

    For two towers the geometry is that of the worse one: either can collapse alone.
    """
    monitor = Monitor(rows=0)
    for part in case.batches():
        contrast = contrast_of(case.pairs(part), temperature)
        monitor.update(Snapshot(contrast, contrast.plain_gap.mean(), None, case.objective))
    record: dict[str, Any] = monitor.compute(step=0)
    # These embeddings are all the evidence there will be, and the objective was not computed.
    del record["steps"], record["objective_loss"]
    return record | _geometry(case)


def _geometry(case: Case) -> dict[str, float]:
    sides = {"z1": _shape(case, case.z1)}
    if case.layout == "two_tower":
        sides["z2"] = _shape(case, case.z2)
    found = {
        "uniformity": max(uniformity for uniformity, _ in sides.values()),
        "effective_rank": min(rank for _, rank in sides.values()),
    }
    for name, (uniformity, rank) in sides.items() if len(sides) > 1 else ():
        found |= {f"uniformity_{name}": uniformity, f"effective_rank_{name}": rank}
    return found


def _shape(case: Case, z: Float[Tensor, "n d"]) -> tuple[float, float]:
    """Uniformity and effective rank of one side, as a Monitor computes them."""
    batches = [normalize(z[part][:MOST_ROWS].double(), dim=1) for part in case.batches()]
    potential = torch.stack([mean_potential(rows) for rows in batches]).mean()
    rows = torch.cat(batches)
    if min(rows.shape) > LARGEST_GRAM:
        rows = rows[_spread(len(rows), LARGEST_GRAM, rows.device)]
    # Both products have the same eigenvalues but for zeros; the smaller one is cheaper.
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    return float(potential.log()), float(rank_of_gram(gram))


# --- Pairs of samples: copies and false negatives ------------------------------------------------


def _on_neighbours(case: Case, numbers: dict[str, Any], kinds: set[str]) -> list[Finding]:
    numbers |= _neighbours(case.of(_spread(len(case.z1), MOST_ROWS, case.z1.device)), case)
    if "collapsed" in kinds:  # every row is then a copy of every other
        return []
    found = []
    if numbers["copied_views"] > COPIED_VIEWS:
        found.append(finding("identical views", **numbers))
    if numbers["twins_a_row"] > TWINS_A_ROW:
        found.append(finding("duplicates", **numbers))
    if "dimensional collapse" in kinds:  # in few dimensions neighbours are necessarily near
        return found
    rate = numbers["false_negative_rate_by_similarity"] or 0.0  # without copies
    if (expected := rate * numbers["negatives"]) > FALSE_NEGATIVES_A_ROW:
        found.append(finding("false negatives", rate=rate, expected=expected))
    if numbers.get("false_negative_weight_by_label", 0.0) > FALSE_WEIGHT:
        found.append(finding("false negatives", within="by label", **numbers))
    return found


def _neighbours(some: Case, whole: Case) -> dict[str, Any]:
    """What all pairs of some samples show; equal ids are known to be the same sample.

    The separation is that of the positives from the negatives' median, in the negatives' spreads.
    """
    first, second = (normalize(z.double(), dim=1) for z in (some.z1, some.z2))
    n = len(first)
    groups = torch.arange(n, device=first.device) if some.ids is None else some.ids
    apart = groups[:, None] != groups
    twins = (_copies(first) | _copies(second)) & apart
    rate, separation = _false_rate(first @ second.T, apart & ~twins)
    share = float(twins.sum() / apart.sum())  # of copies among the negatives
    copied = torch.linalg.vector_norm(first - second, dim=1) < SAME
    seen = {
        "twins_a_row": float(twins.sum()) / (n * (n - 1)) * (whole.batch_size - 1),
        "copied_views": float(copied.double().mean()),
        "separation": separation,
        "false_negative_rate_by_similarity": rate,
        "false_negative_rate": None if rate is None else share + (1 - share) * rate,
    }
    if some.labels is not None and bool((known := some.labels >= 0).any()):
        pairs = two_tower(first, second, directions="left", ids=groups)[0]
        weights = importance_weights(pairs, some.temperature)[known]
        # Negatives of labelled anchors that have their label, by number and by weight.
        same = ((some.labels[:, None] == some.labels) & apart)[known]
        counted = float(same.sum() / apart[known].sum())
        seen["false_negative_rate_by_label"] = seen["false_negative_rate"] = counted
        seen["false_negative_weight_by_label"] = float((weights * same).sum(dim=1).mean())
    return seen


def _copies(rows: Float[Tensor, "n d"]) -> Bool[Tensor, "n n"]:
    """Which rows have one embedding."""
    # In float64 the product resolves 1 - cos down to 1e-16, that is distances of 1e-8.
    return (2 - 2 * rows @ rows.T).clamp_min(0).sqrt() < SAME


def _false_rate(
    cosines: Float[Tensor, "n n"], negative: Bool[Tensor, "n n"]
) -> tuple[float | None, float]:
    """The share of negatives that look like positives, and the separation of the positives."""
    scores = cosines[negative]
    if len(scores) == 0:
        return None, 0.0
    level = cosines.diagonal().median()
    middle = scores.kthvalue(len(scores) // 2 + 1).values
    # 15.87 % of a normal distribution lie more than one standard deviation below its median.
    lower = scores.kthvalue(int(0.1587 * len(scores)) + 1).values
    deviation = (middle - lower).clamp_min(1e-12)
    separation = float((level - middle) / deviation)
    if separation < SEPARATION:
        return None, separation
    tail = 0.5 * math.erfc(separation / math.sqrt(2))
    above = float((scores >= level).double().mean())
    return min(max(2 * (above - tail), 0.0), 1.0), separation


def _unknown(
    numbers: dict[str, Any], no_temperature: bool, no_batch_size: bool, judged: int
) -> tuple[str, ...]:
    said, n = [], numbers["samples"]
    if no_batch_size:
        which = f"the {n:,} samples" if judged == n else f"{judged:,} drawn with a fixed seed"
        said.append(not_known("batch_size", which=which, negatives=numbers["negatives"]))
    if no_temperature:
        said.append(not_known("temperature", temperature=DEFAULT_TEMPERATURE))
    if numbers["false_negative_rate"] is None:
        separation = numbers["separation"]
        said.append(not_known("false_negatives", separation=separation, needed=SEPARATION))
    if judged > MOST_ROWS:
        said.append(not_known("pairs", samples=n, most=MOST_ROWS))
    return tuple(said)
