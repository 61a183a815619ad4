"""Which protocols on which data sets: named, checked before any work starts, then run."""

from collections.abc import Iterator, Sequence

from flatnce.pretrain.data import MissingData
from flatnce.pretrain.evaluation.bench import Bench, missing_sets, nearest
from flatnce.pretrain.evaluation.protocols import PROTOCOLS, Result

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
