"""``flatnce.doctor(z1, z2)``: two views' embeddings, looked at from every side."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.diagnose.arguments import Embeddings, Integers, check, same_type, tensor_of
from flatnce.diagnose.findings import Diagnosis, Finding, in_order
from flatnce.diagnose.measures import (
    GOOD_ESS,
    MOST_ROWS,
    MOST_SEARCHED,
    Case,
    better_temperature,
    record_of,
    spread,
)
from flatnce.diagnose.neighbours import SEPARATION, look_around, neighbour_findings
from flatnce.diagnose.precision import ALIVE, LOSS_SCALE, PRECISIONS, dead_in, survival
from flatnce.diagnose.records import findings_on, verdicts_on

DEFAULT_TEMPERATURE = 0.1
"""What the losses of this package use where nothing else is said."""


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

    Looks for: broken rows, collapse (whole and of dimensions), a gradient that dies in a
    precision, identical views, a loss that does not learn, duplicates, false negatives,
    saturation, too few negatives, a temperature out of range. See :data:`KINDS` for the order.

    Arguments:
        z1: First views, (n, d), as the loss gets them; rows are normalised here. A tensor, a
            NumPy array or what else ``torch.as_tensor`` takes.
        z2: Second views; row i is the positive of row i of ``z1``. Of two types the wider is
            taken.
        temperature: Of the loss; unknown, 0.1 is taken and no temperature called wrong.
        labels: One class a sample, for counting false negatives; negative ones are unknown.
        ids: One integer a sample: equal ones are known to be the same sample.
        batch_size: Samples of a training batch; by default all rows are one, or of more than
            2,048 so many, always the same ones.
        precision: In which the loss is computed: ``float16``, ``bfloat16`` or ``float32``; by
            default that of ``z1`` and ``z2``.
        loss_scale: Of a gradient scaler; by default 65536 in float16, as torch's begins, and 1
            elsewhere. 1 means that there is none.
        layout: ``two_view`` (SimCLR) or ``two_tower`` (CLIP, retrieval).
        objective: The loss's name, for example ``InfoNCE``; remedies depend on it.
        subject: What to call it in the answer.

    Examples:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch...>
        >>> z = torch.randn(256, 64)
        >>> doctor(z, z + 0.9 * torch.randn(256, 64), temperature=0.2).verdict
        'healthy'
        >>> doctor(z, z.clone(), temperature=0.05).kinds
        ('identical views', 'saturated')
    """
    z1, z2 = same_type(tensor_of("z1", z1), tensor_of("z2", z2))
    labels = None if labels is None else tensor_of("labels", labels)
    ids = None if ids is None else tensor_of("ids", ids)
    check(z1, z2, temperature, labels, ids, batch_size, precision, loss_scale, layout)
    whole = _whole_rows(z1, z2)
    broken = _broken(z1, z2, whole)
    n = int(whole.sum())
    if n < 2:
        return Diagnosis(subject, (broken,) if broken else (), {"samples": n}, judged=False)
    kept = Case(
        z1[whole],
        z2[whole],
        None if ids is None else ids[whole].to(z1.device),
        None if labels is None else labels[whole].to(z1.device),
        temperature or DEFAULT_TEMPERATURE,
        min(batch_size or n, n),
        layout,
        objective,
    )
    numbers: dict[str, Any] = {"samples": n, "width": z1.shape[1]}
    found = [broken] if broken else []
    judged = kept if batch_size is not None else kept.drawn()
    found += _judged(judged, numbers, assumed=batch_size is None)
    around = replace(kept, batch_size=judged.batch_size)
    found += _looked_around(around, numbers, {finding.kind for finding in found})
    named = precision or str(z1.dtype).removeprefix("torch.")
    found += _survived(judged, numbers, named, loss_scale, {finding.kind for finding in found})
    if temperature is None:
        found = [finding for finding in found if not finding.kind.startswith("temperature")]
    unknown = _unknown(numbers, temperature, batch_size, len(judged.z1))
    return Diagnosis(subject, in_order(found), numbers, unknown)


def _whole_rows(z1: Tensor, z2: Tensor) -> Tensor:
    """Samples of which both rows are finite and none is zero, in the loss's own float32."""
    norms = [torch.linalg.vector_norm(z.to(_working(z)), dim=1) for z in (z1, z2)]
    return (norms[0] * norms[1] > 0) & norms[0].isfinite() & norms[1].isfinite()


def _working(z: Tensor) -> torch.dtype:
    return torch.promote_types(z.dtype, torch.float32)


def _broken(z1: Tensor, z2: Tensor, whole: Tensor) -> Finding | None:
    count = int((~whole).sum())
    if not count:
        return None
    finite = z1.isfinite().all(dim=1) & z2.isfinite().all(dim=1)
    return Finding(
        "broken rows",
        f"{count} of {len(whole)} samples cannot be normalised: {int((~finite).sum())} hold NaN "
        f"or infinite values, {int((finite & ~whole).sum())} are zero or overflow; the rest was "
        "judged without them",
        (
            "look for the first step with a NaN: a learning rate too large, a division by zero",
            "in float16, look for overflow before the head's end; bfloat16 has the range",
            "zero rows are dead units: lower the learning rate, or end the head without a ReLU",
        ),
    )


def _judged(case: Case, numbers: dict[str, Any], *, assumed: bool) -> list[Finding]:
    """Findings on the row statistics, as a Monitor takes them; an assumed batch is named."""
    record, half = record_of(case, case.temperature)
    numbers |= record
    numbers["negatives_for_half_gain"] = half
    numbers["temperature_for_good_ess"] = better = better_temperature(case)
    idle = None
    wrong = {"peaked", "uniform"} & {verdict.kind for verdict in verdicts_on([record])}
    if better is not None and wrong:
        # A wrong temperature hides whether anything was learnt; at a better one it shows.
        there, _ = record_of(case, better)
        idle = "not learning" in {verdict.kind for verdict in verdicts_on([there])}
    available = min(len(case.z1), case.z1.shape[1])
    found = findings_on([record], case.objective, available=available, idle=idle)
    more = [_with_more(finding, numbers, case.batch_size) for finding in found]
    return [_of_one_batch(finding, case, numbers) for finding in more] if assumed else more


def _with_more(finding: Finding, numbers: dict[str, Any], batch_size: int) -> Finding:
    """The finding without steps, which embeddings do not have, and with what they do tell."""
    more, better = "", numbers["temperature_for_good_ess"]
    if finding.kind == "saturated" and (half := numbers["negatives_for_half_gain"]) < 1e9:
        more = f"; for a gain of 0.5 it would take about {half:,.0f} negatives a row"
    if finding.kind.startswith("temperature") and better is not None:
        more = f"; temperature {better:.2g} would give an ESS of {GOOD_ESS}"
        more += f", not {numbers['temperature']:.2g}"
        more += f" (of {MOST_SEARCHED:,} samples)" if batch_size > MOST_SEARCHED else ""
    if "collapse" in finding.kind and "uniformity_z2" in numbers:
        more = f"; uniformity is {numbers['uniformity_z1']:.2f} in z1 and "
        more += f"{numbers['uniformity_z2']:.2f} in z2, effective rank "
        more += f"{numbers['effective_rank_z1']:.1f} and {numbers['effective_rank_z2']:.1f}"
    return Finding(finding.kind, finding.evidence + more, finding.remedies)


def _of_one_batch(finding: Finding, case: Case, numbers: dict[str, Any]) -> Finding:
    """The finding with the batch that was taken for granted, if it depends on the negatives."""
    if "collapse" in finding.kind:
        return finding
    said = f" (judged with {case.batch_size:,} samples as one batch, {numbers['negatives']:,.0f} "
    return replace(finding, evidence=f"{finding.evidence}{said}negatives a row)")


def _looked_around(case: Case, numbers: dict[str, Any], kinds: set[str]) -> list[Finding]:
    n = len(case.z1)
    rows = spread(n, MOST_ROWS, case.z1.device)
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
    if "collapsed" in kinds:  # then everything is a copy of everything
        return []
    found = neighbour_findings(seen, numbers["negatives"])
    if "dimensional collapse" in kinds:  # in few dimensions neighbours are near by necessity
        found = [finding for finding in found if finding.kind != "false negatives"]
    return found


def _survived(
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
    # Where all rows are one, rounding has nothing left to spoil: that is the collapse's fault.
    if cosine is None or cosine >= ALIVE or (precision == "float32" and "collapsed" in kinds):
        return []
    bare = None
    if scale != 1:
        bare = survival(*views, case.temperature, precision, layout=case.layout)
    return [dead_in(precision, cosine, bare)]


def _unknown(
    numbers: dict[str, Any], temperature: float | None, batch_size: int | None, judged: int
) -> tuple[str, ...]:
    said, n = [], numbers["samples"]
    if batch_size is None:
        which = f"all {n:,} samples" if judged == n else f"{judged:,} drawn with a fixed seed"
        said.append(
            f"the batch size was not given: {which} were judged as one batch, with "
            f"{numbers['negatives']:,.0f} negatives a row, more than in training if its batches "
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
            "the rate of false negatives: positives stand only "
            f"{numbers['separation']:.2f} spreads above the negatives, {SEPARATION:g} are needed"
        )
    if judged < n:
        said.append(f"gain, ESS and spread of all {n:,} samples: {judged:,} were looked at")
    if n > MOST_ROWS:
        said.append(f"pairs of all {n:,} samples: {MOST_ROWS:,} of them were looked at")
    return tuple(said)
