"""Numbers of the version before the rebuild, commit 52e946b, to be compared with today's.

    PYTHONPATH=OLD/src:OLD/tests python -P tests/same_numbers.py tests/same_numbers.npz

The file was written by that commit's code, checked out at OLD. All is computed in float64. What
was called ``ess`` then is ``ess_paper`` today. The numbers of "controlled" calls were written
again when the controller's estimator changed, by ``python tests/same_numbers.py FILE controlled``.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import flatnce
from flatnce import functional as F
from layouts import IDS, LABELS, NAMES, case_of, mask_of, random

TEMPERATURE = 0.3
READERS = ("infonce", "dcl", "flatnce", "flatnce_plus")
READINGS = ("ess_paper", "ess_with_positive", "gain", "mi", "mi_ceiling", "saturated", "top1")
POWERS = (1.0, 2.0, 0.0, -1.0, float("inf"))
OBJECTIVES = ("InfoNCE", "DCL", "FlatNCE", "FlatNCEPlus", "HolderFlatNCE")


def flat(tensors: list[Tensor]) -> np.ndarray:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors]).numpy()


def of_contrast(contrast: F.Contrast) -> list[Tensor]:
    """Losses and diagnostics."""
    found = [getattr(F, reader)(contrast) for reader in READERS]
    found += [F.effective_sample_size(contrast, with_positive=one) for one in (False, True)]
    found += [F.gradient_gain(contrast), F.mutual_information(contrast)]
    found += [F.mutual_information_ceiling(contrast), F.saturated_share(contrast)]
    return [*found, F.retrieval_top1(contrast), contrast.gap]


def layout(name: str) -> dict[str, np.ndarray]:
    """One case of the battery of layouts: losses, diagnostics, gradients."""
    case, found = case_of(name), {}
    for power in POWERS:
        contrast = F.contrast_of(case.build(case.inputs), TEMPERATURE, power=power)
        found[f"{name}; power {power}"] = flat(of_contrast(contrast))
    for reader in ("infonce", "flatnce"):
        leaves = case.leaves()
        tau = torch.tensor(TEMPERATURE, dtype=torch.float64, requires_grad=True)
        getattr(F, reader)(F.contrast_of(case.build(leaves), tau)).backward()
        wanted = [leaves[key] for key in leaves if key not in case.constants]
        found[f"{name}; gradient of {reader}"] = flat([x.grad for x in (*wanted, tau)])
    return found


def module_calls() -> dict[str, tuple[dict, dict]]:
    """Options of an objective, and keywords of its call."""
    ids, labels = torch.tensor(IDS), torch.tensor(LABELS[:5])
    controller = flatnce.EssController(target=0.5, rate=0.1)
    return {
        "two views": ({}, {}),
        "two views, raw": ({"normalize": False}, {}),
        "two views, ids": ({}, {"ids": ids}),
        "two views, mask": ({}, {"false_negatives": mask_of(5)}),
        "two towers": ({"layout": "two_tower"}, {}),
        "two towers, raw": ({"layout": "two_tower", "normalize": False}, {}),
        "two towers, ids": ({"layout": "two_tower"}, {"ids": ids}),
        "labels": ({}, {"labels": labels}),
        "chunked": ({"kernel": "chunked"}, {}),
        "controlled": ({"temperature": controller}, {}),
        "learned": ({"temperature": flatnce.LearnedTemperature(0.2).double()}, {}),
        "queue": ({"queue": flatnce.KeyQueue(12, 3).double()}, {}),
        "queue, ids": ({"queue": flatnce.KeyQueue(12, 3).double()}, {"ids": ids}),
    }


def modules(name: str, call: str) -> dict[str, np.ndarray]:
    """Four steps of an objective as a module, with a monitor."""
    options, keywords = module_calls()[call]
    loss_fn = getattr(flatnce, name)(**{"temperature": TEMPERATURE, **options})
    monitor, found = flatnce.Monitor(), []
    for step in range(4):
        views = [random(5, 3, seed=100 * step + view).requires_grad_() for view in (1, 2)]
        loss = loss_fn(*views, **keywords)
        loss.backward()
        monitor.update(loss_fn.last)
        found += [loss, *(view.grad for view in views), loss_fn.last.temperature]
        found += [getattr(loss_fn.last, reading) for reading in READINGS]
        found += [p.grad for p in loss_fn.parameters()]
    record = monitor.compute()
    del record["step"], record["steps"]
    record["ess"] = record.pop("ess_paper")
    numbers = {f"{name}, {call}": flat(found)}
    for key, value in record.items():
        numbers[f"{name}, {call}; {key}"] = np.array(value)
    return numbers


def of_logits() -> dict[str, np.ndarray]:
    """The drop-in cross entropy: values and gradients."""
    found, target = {}, torch.tensor([2, 0, 5, -100, 1, 1])
    weight = random(6, seed=5).abs() + 0.1
    for scale in (1.0, 30.0):
        for options in ({}, {"weight": weight}, {"reduction": "sum"}, {"reduction": "none"}):
            logits = (scale * random(6, 6, seed=6)).requires_grad_()
            with torch.no_grad():
                logits[0, 3] = -torch.inf
            loss = F.cross_entropy(logits, target, **options)
            loss.sum().backward()
            found[f"logits, {scale} {sorted(options)} {options.get('reduction')}"] = flat(
                [loss, logits.grad]
            )
    return found


def numbers() -> dict[str, np.ndarray]:
    found = of_logits()
    for name in NAMES:
        found |= layout(name)
    for name in OBJECTIVES:
        for call in module_calls():
            found |= modules(name, call)
    return found


def load(path: Path) -> dict[str, np.ndarray]:
    """What :func:`save` wrote."""
    with np.load(path) as file:
        names, sizes, values = (file[key] for key in ("names", "sizes", "values"))
    return dict(zip(names.tolist(), np.split(values, sizes.cumsum()[:-1]), strict=True))


def save(path: str, found: dict[str, np.ndarray]) -> None:
    """All in one array: an archive of many is large."""
    arrays = [np.atleast_1d(array) for array in found.values()]
    sizes, values = np.array([len(a) for a in arrays]), np.concatenate(arrays)
    np.savez_compressed(path, names=np.array(list(found)), sizes=sizes, values=values)


if __name__ == "__main__":
    path, *calls = sys.argv[1:]
    kept = load(Path(path)) if calls else {}
    for call in calls:
        for name in OBJECTIVES:
            kept |= modules(name, call)
    save(path, kept or numbers())
