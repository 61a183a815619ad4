"""Every pair layout with its options, twice: as the package builds it and as a list of names.

A :class:`Case` holds small inputs, the call that makes the package's pairs of them, and, written
out by plain loops, who is whose positive and who is whose negative. From that list come the rows
of ``reference.py``, which can be differentiated by all inputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import reference
from flatnce.core.pairs import KeyQueue, Pairs
from flatnce.functional import labelled, multi_view, two_tower, two_view, with_queue

Place = tuple[str, int] | tuple[str, int, int]
Inputs = dict[str, Tensor]

IMAGES, WIDTH, HARD = 5, 3, 2
IDS = [7, 3, 7, 4, 5]
LABELS = [0, 1, 0, 2, 1, 0, 3]  # 2 and 3 occur once: those rows have no positive
QUEUE_SIZE, QUEUE_IDS = 6, [7, 100, 3, 101]  # two slots stay empty


@dataclass(frozen=True)
class Member:
    """One row: its anchor, its positives and its negatives, each named by input and index."""

    anchor: Place
    positives: list[Place]
    negatives: list[Place]


@dataclass(frozen=True)
class Case:
    """A layout with its options. ``constants`` are inputs that have no gradient (a queue)."""

    inputs: Inputs
    build: Callable[[Inputs], Pairs | tuple[Pairs, ...]]
    members: list[Member]
    form: str = "each"
    normalize: bool = True
    constants: tuple[str, ...] = ()

    def leaves(self, dtype: torch.dtype = torch.float64) -> Inputs:
        """Fresh inputs that ask for gradients."""
        return {
            name: value.detach().to(dtype).requires_grad_(name not in self.constants)
            for name, value in self.inputs.items()
        }


# --- Who is whose --------------------------------------------------------------------------------


def mask_of(size: int) -> Tensor:
    """Known false negatives, not symmetric."""
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[0, 1] = mask[3, 2] = mask[4, 0] = True
    return mask


def hard_places(options: set[str], image: int) -> list[Place]:
    if "shared" in options:
        return [("negatives", h) for h in range(HARD)]
    if "own" in options:
        return [("negatives", image, h) for h in range(HARD)]
    return []


def kept(options: set[str], i: int, size: int = IMAGES) -> Iterator[int]:
    """The images that are negatives of image i."""
    for j in range(size):
        same = i == j or ("ids" in options and IDS[i] == IDS[j])
        if not same and not ("masked" in options and mask_of(size)[i, j]):
            yield j


def one_by_one(anchor: Place, positives: list[Place], negatives: list[Place]) -> list[Member]:
    return [Member(anchor, [positive], negatives) for positive in positives]


def view_members(options: set[str], views: int, form: str) -> list[Member]:
    members = []
    for view in range(1, views + 1):
        for i in range(IMAGES):
            anchor = (f"z{view}", i)
            positives: list[Place] = [(f"z{u}", i) for u in range(1, views + 1) if u != view]
            negatives: list[Place] = [
                (f"z{u}", j) for u in range(1, views + 1) for j in kept(options, i)
            ]
            negatives += hard_places(options, i)
            if form == "each":
                members += one_by_one(anchor, positives, negatives)
            else:
                members.append(Member(anchor, positives, negatives))
    return members


def tower_members(options: set[str], directions: str) -> list[Member]:
    members = []
    for i in range(IMAGES):
        negatives: list[Place] = [("right", j) for j in kept(options, i)]
        members.append(Member(("left", i), [("right", i)], negatives + hard_places(options, i)))
    if directions == "left":
        return members
    for j in range(IMAGES):
        negatives = [("left", i) for i in range(IMAGES) if j in kept(options, i)]
        members.append(Member(("right", j), [("left", j)], negatives))
    return members


def label_members(options: set[str]) -> list[Member]:
    members = []
    for i, label in enumerate(LABELS):
        positives: list[Place] = []
        negatives: list[Place] = []
        for j, other in enumerate(LABELS):
            if other == label and j != i:
                positives.append(("z", j))
            elif other != label and j in kept(options - {"ids"}, i, len(LABELS)):
                negatives.append(("z", j))
        members.append(Member(("z", i), positives, negatives + hard_places(options, i)))
    return members


def queue_members(options: set[str], in_batch: bool) -> list[Member]:
    members = []
    for i in range(IMAGES):
        negatives: list[Place] = [("key", j) for j in kept(options, i) if in_batch]
        for slot, queued in enumerate(QUEUE_IDS):
            if not ("ids" in options and queued == IDS[i]):
                negatives.append(("queue", slot))
        members.append(Member(("query", i), [("key", i)], negatives + hard_places(options, i)))
    return members


# --- Cases ---------------------------------------------------------------------------------------


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, of a scale that keeps scores without normalisation moderate."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keywords(options: set[str], inputs: Inputs, size: int = IMAGES) -> dict[str, object]:
    found: dict[str, object] = {"normalize": "raw" not in options}
    if "ids" in options:
        found["ids"] = torch.tensor(IDS)
    if "masked" in options:
        found["false_negatives"] = mask_of(size)
    if "negatives" in inputs:
        found["negatives"] = inputs["negatives"]
    return found


def hard_negatives(options: set[str], size: int = IMAGES) -> Inputs:
    if "shared" in options:
        return {"negatives": random(HARD, WIDTH, seed=9)}
    if "own" in options:
        return {"negatives": random(size, HARD, WIDTH, seed=9)}
    return {}


def view_case(options: set[str], views: int = 2, form: str = "each") -> Case:
    names = [f"z{view}" for view in range(1, views + 1)]
    inputs = {name: random(IMAGES, WIDTH, seed=place) for place, name in enumerate(names)}
    inputs |= hard_negatives(options)

    def build(given: Inputs) -> Pairs:
        chosen = keywords(options, given)
        if views == 2:
            return two_view(given["z1"], given["z2"], **chosen)
        return multi_view([given[name] for name in names], form=form, **chosen)

    return Case(inputs, build, view_members(options, views, form), form, "raw" not in options)


def tower_case(options: set[str], directions: str = "both") -> Case:
    inputs = {"left": random(IMAGES, WIDTH, seed=0), "right": random(IMAGES, WIDTH, seed=1)}
    inputs |= hard_negatives(options)

    def build(given: Inputs) -> tuple[Pairs, ...]:
        chosen = keywords(options, given)
        return two_tower(given["left"], given["right"], directions=directions, **chosen)

    return Case(inputs, build, tower_members(options, directions), normalize="raw" not in options)


def label_case(options: set[str], form: str = "out") -> Case:
    size = len(LABELS)
    inputs = {"z": random(size, WIDTH, seed=0), **hard_negatives(options, size)}

    def build(given: Inputs) -> Pairs:
        chosen = keywords(options, given, size)
        return labelled(given["z"], torch.tensor(LABELS), form=form, **chosen)

    return Case(inputs, build, label_members(options), form, "raw" not in options)


def queue_case(options: set[str], in_batch: bool = False) -> Case:
    inputs = {"query": random(IMAGES, WIDTH, seed=0), "key": random(IMAGES, WIDTH, seed=1)}
    inputs |= {"queue": random(len(QUEUE_IDS), WIDTH, seed=2), **hard_negatives(options)}

    def build(given: Inputs) -> Pairs:
        queue = KeyQueue(QUEUE_SIZE, WIDTH).double()
        chosen = keywords(options, given)
        queue.enqueue(given["queue"], torch.tensor(QUEUE_IDS), normalize="raw" not in options)
        return with_queue(given["query"], given["key"], queue, in_batch=in_batch, **chosen)

    members = queue_members(options, in_batch)
    return Case(inputs, build, members, normalize="raw" not in options, constants=("queue",))


LAYOUTS: dict[str, tuple[Callable[..., Case], dict[str, object]]] = {
    "two views": (view_case, {}),
    "three views, each": (view_case, {"views": 3, "form": "each"}),
    "three views, out": (view_case, {"views": 3, "form": "out"}),
    "three views, in": (view_case, {"views": 3, "form": "in"}),
    "two towers": (tower_case, {}),
    "left tower": (tower_case, {"directions": "left"}),
    "labels, out": (label_case, {"form": "out"}),
    "labels, in": (label_case, {"form": "in"}),
    "queue": (queue_case, {}),
    "queue and batch": (queue_case, {"in_batch": True}),
}
OPTIONS = ["", "raw", "ids", "masked", "shared", "own", "ids masked shared", "raw ids masked own"]


def takes(layout: str, option: str) -> bool:
    """Labels are their own ids, and a queue alone has no batch to mask."""
    refused = {"labels, out": "ids", "labels, in": "ids", "queue": "masked"}.get(layout)
    return refused is None or refused not in option


NAMES = [f"{layout}: {o or 'plain'}" for layout in LAYOUTS for o in OPTIONS if takes(layout, o)]
NAMES += ["labels, out: masked shared", "labels, in: raw masked own", "queue: ids own"]


def case_of(name: str) -> Case:
    """The case of that name, fresh."""
    layout, _, options = name.partition(": ")
    make, chosen = LAYOUTS[layout]
    return make(set(options.split()) - {"plain"}, **chosen)


# --- The slow side -------------------------------------------------------------------------------


def scores_of(
    case: Case, inputs: Inputs, temperature: float | Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Scores of each member's positives and negatives, differentiable, members in order."""
    starts, tables, start = {}, [], 0
    for name, value in inputs.items():
        rows = value.reshape(-1, value.shape[-1])
        starts[name], start = (start, value.shape), start + len(rows)
        tables.append(rows)
    table = torch.cat(tables)
    table = table / table.square().sum(dim=1, keepdim=True).sqrt() if case.normalize else table
    scores = table @ table.T / temperature

    def line(place: Place) -> int:
        first, shape = starts[place[0]]
        return first + place[1] if len(place) == 2 else first + place[1] * shape[1] + place[2]

    def of(anchor: Place, keys: list[Place]) -> Tensor:
        return scores[line(anchor), torch.tensor([line(key) for key in keys], dtype=torch.long)]

    return [(of(m.anchor, m.positives), of(m.anchor, m.negatives)) for m in case.members]


def rows_of(
    case: Case, temperature: float | Tensor, inputs: Inputs | None = None
) -> list[reference.Row]:
    """The rows of ``reference.py``, differentiable; a member without a positive has none."""
    rows = []
    given = case.inputs if inputs is None else inputs
    for place, (positives, negatives) in enumerate(scores_of(case, given, temperature)):
        if len(positives):
            rows += reference.rows_of_form(place, positives, negatives, case.form)
    return rows


def learned(case: Case, temperature: float) -> tuple[Inputs, Tensor, list[Tensor]]:
    """Fresh leaves, a temperature, and all that a loss may be differentiated by."""
    leaves = case.leaves()
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    return leaves, tau, [*(leaf for leaf in leaves.values() if leaf.requires_grad), tau]
