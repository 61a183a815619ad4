"""The steps between two tables and an answer, for one data set or several side by side."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.mi.bounds import infonce
from flatnce.mi.estimator.classical import baselines_of
from flatnce.mi.estimator.cleaning import Cleaned, clean
from flatnce.mi.estimator.fitting import calibrated, fit
from flatnce.mi.estimator.flags import Seen, flags_of
from flatnce.mi.estimator.members import Fitted, Member, Progress
from flatnce.mi.estimator.numbers import numbers_of_parts
from flatnce.mi.estimator.plan import Plan
from flatnce.mi.estimator.readouts import learned_dual_readout
from flatnce.mi.estimator.result import Estimate
from flatnce.mi.estimator.splits import (
    JACKKNIFE_GROUPS,
    Split,
    jackknife_groups,
    splits_of,
    units_of,
)
from flatnce.mi.estimator.sums import Part
from flatnce.mi.estimator.transforms import Transform, fitted_transform

COMPARED_ROWS = 2048


@dataclass
class Round:
    """One split: its rows, its maps and, once trained, its critic."""

    split: Split
    transforms: tuple[Transform, Transform]
    member: Member
    fitted: Fitted | None = None


@dataclass
class Work:
    """A data set on its way to an answer."""

    plan: Plan
    cleaned: Cleaned
    units: NDArray[np.int64]
    rounds: list[Round]
    settings: dict[str, Any]
    began: float


def prepare(
    x: Any,
    y: Any,
    plan: Plan,
    groups: ArrayLike | None = None,
    blocks: int | None = None,
) -> Work:
    """Clean, split, transform, and make the critics."""
    began = time.perf_counter()
    cleaned = clean(x, y)
    given = cleaned.report.rows_given
    units = units_of(cleaned.rows, cleaned.copies, groups, blocks, given)
    settings = {field.name: getattr(plan, field.name) for field in fields(plan)}
    settings |= {"critic": plan.critic_kind, "device": str(plan.place()), "blocks": blocks}
    settings["groups"] = None if groups is None else int(units.max()) + 1
    rounds = []
    if not plan.chosen.classical:
        for number, split in enumerate(splits_of(units, plan.folds, plan.seed)):
            rounds.append(_round(cleaned, split, plan, number))
        fitting = plan.settings(len(rounds[0].split.train))
        names = ("batch_size", "steps", "every", "patience", "rate", "average")
        settings |= {name: getattr(fitting, name) for name in names}
    return Work(plan, cleaned, units, rounds, settings, began)


def _round(cleaned: Cleaned, split: Split, plan: Plan, number: int) -> Round:
    tables = (cleaned.x, cleaned.y)
    on_x, on_y = (fitted_transform(plan.transform, side[split.train]) for side in tables)
    train, validation = (
        (on_x(cleaned.x[rows]), on_y(cleaned.y[rows])) for rows in (split.train, split.validation)
    )
    seed = plan.seed + 1000 * number
    critic = plan.new_critic(train, seed).to(plan.place())
    x, y, x_validation, y_validation = (
        torch.from_numpy(side).to(plan.place()) for side in (*train, *validation)
    )
    return Round(split, (on_x, on_y), Member(critic, x, y, x_validation, y_validation, seed))


def train(works: Sequence[Work], progress: Callable[[Progress], None] | None = None) -> None:
    """Train the critics of all data sets, side by side where they are alike."""
    rounds = [round for work in works for round in work.rounds]
    if not rounds:
        return
    settings = works[0].plan.settings(min(len(round.split.train) for round in rounds))
    for round, fitted in zip(
        rounds, fit([round.member for round in rounds], settings, progress), strict=True
    ):
        round.fitted = _precise(fitted, round.member)


def _precise(fitted: Fitted, member: Member) -> Fitted:
    """Calibrate once more, on as many validation rows as there is room for."""
    most = min(len(member.x_validation), 2 * COMPARED_ROWS)
    with torch.no_grad():
        scores = fitted.critic(member.x_validation[:most], member.y_validation[:most]).double()
    fitted.scale, _ = calibrated(scores, fitted.scale, tolerance=1e-4)
    return fitted


def _rows(work: Work, round: Round, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    device = round.member.x.device
    sides = (work.cleaned.x[rows], work.cleaned.y[rows])
    x, y = (
        torch.from_numpy(mapped(side)).to(device)
        for mapped, side in zip(round.transforms, sides, strict=True)
    )
    return x, y


def _parts(work: Work) -> tuple[list[Part], list[NDArray[np.int64]]]:
    """What is read: each round's test rows, cut into pools that are not too large."""
    parts, units = [], []
    read = np.concatenate([round.split.test for round in work.rounds])
    group = np.zeros(len(work.units), dtype=np.int64)
    group[read] = jackknife_groups(work.units[read], JACKKNIFE_GROUPS, work.plan.seed)
    for round in work.rounds:
        assert round.fitted is not None
        test = round.split.test
        pieces = -(-len(test) // work.plan.pool)
        # Whole units to a piece: their rows may not meet as strangers, nor be permuted apart.
        place = np.unique(work.units[test], return_inverse=True)[1] % pieces
        for piece in range(min(pieces, int(place.max()) + 1)):
            rows = test[place == piece]
            x, y = _rows(work, round, rows)
            parts.append(
                Part(
                    round.fitted.critic,
                    round.fitted.scale,
                    x,
                    y,
                    round.member.y_validation[: work.plan.pool],
                    torch.from_numpy(group[rows]).to(x.device),
                )
            )
            units.append(work.units[rows])
    return parts, units


@torch.no_grad()
def _train_and_test(work: Work, parts: Sequence[Part]) -> tuple[float, float]:
    """InfoNCE on training rows and on as many test rows, under one scale."""
    values: list[tuple[float, float]] = []
    for round in work.rounds:
        assert round.fitted is not None
        part = next(part for part in parts if part.critic is round.fitted.critic)
        most = min(len(round.member.x), len(part.x), COMPARED_ROWS)
        critic, scale = round.fitted.critic, round.fitted.scale
        pairs = ((round.member.x, round.member.y), (part.x, part.y))
        seen, fresh = (
            float(infonce(scale * critic(x[:most], y[:most]).double())) for x, y in pairs
        )
        values.append((seen, fresh))
    seen, fresh = (sum(column) / len(values) for column in zip(*values, strict=True))
    return seen, fresh


def finish(work: Work) -> Estimate:
    """Read the trained critics on untouched rows."""
    plan = work.plan
    parts, units = _parts(work)
    numbers = numbers_of_parts(parts, units, plan.permutations, plan.seed)
    readouts = numbers.readouts
    if plan.chosen.dual is not None:
        flo = learned_dual_readout(parts)
        readouts[flo.name] = flo
    primary = readouts["infonce"]
    fitted = [round.fitted for round in work.rounds if round.fitted is not None]
    seen, fresh = _train_and_test(work, parts)
    flags = flags_of(
        work.cleaned,
        Seen(
            readouts=readouts,
            ceiling=numbers.ceiling,
            train=seen,
            test=fresh,
            scales=[each.scale for each in fitted],
            ess=numbers.ess,
            diverged=sum(each.diverged for each in fitted),
            test_rows=min(numbers.rows),
            read_rows=sum(numbers.rows),
            units=len(np.unique(np.concatenate(units))),
            folds=plan.folds,
            best_steps=[each.step for each in fitted],
            steps=work.settings["steps"],
        ),
    )
    history = tuple(
        {"fold": number, **record} for number, each in enumerate(fitted) for record in each.history
    )
    first = work.rounds[0].split
    return Estimate(
        nats=primary.nats,
        standard_error=primary.standard_error,
        lower=numbers.lower,
        p_value=numbers.p_value,
        permutations=plan.permutations,
        ceiling=numbers.ceiling,
        saturated=any(flag.name == "saturated" for flag in flags),
        method=plan.method,
        readout=primary.name,
        flags=flags,
        readouts=readouts,
        baselines=baselines_of(work.cleaned, plan.seed) if plan.baselines else {},
        cleaning=work.cleaned.report,
        split={
            "train": len(first.train),
            "validation": len(first.validation),
            "test": sum(numbers.rows),
            "folds": plan.folds,
        },
        history=history,
        settings=work.settings,
        seconds=time.perf_counter() - work.began,
    )
