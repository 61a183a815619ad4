"""The numbers that the paper prints in its tables, as shares; copied by hand, checked twice.

References:
    Chen et al., 2021, "Simpler, Faster, Stronger: Breaking the log-K Curse on Contrastive
    Learners with FlatNCE", Tables 2, 3, S2, S3, S4, https://arxiv.org/abs/2107.01152
"""

EPOCHS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)

TABLE_2 = {
    "infonce": (38.57, 43.71, 47.03, 49.45, 49.93, 52.18, 53.31, 53.47, 53.98, 54.62),
    "flatnce": (39.7, 45.30, 47.74, 49.72, 50.39, 53.30, 54.48, 54.43, 56.25, 56.74),
}
"""ImageNet, top-1 by epoch, per cent: the short linear evaluation."""

TABLE_S3 = {
    "top1": {
        "infonce": (40.93, 46.22, 48.64, 50.14, 52.14, 53.62, 55.20, 56.36, 56.99, 57.13),
        "flatnce": (42.40, 47.69, 49.96, 52.27, 54.11, 55.48, 56.98, 58.21, 58.80, 59.74),
    },
    "top5": {
        "infonce": (65.34, 70.92, 73.63, 75.38, 76.90, 78.24, 79.59, 80.58, 80.85, 81.00),
        "flatnce": (67.17, 72.61, 74.59, 76.77, 78.29, 79.67, 81.06, 82.19, 82.71, 83.18),
    },
}
"""The same runs, per cent: the long linear evaluation (erratum 21)."""

TRANSFER_COLUMNS = ("cifar10", "cifar100", "voc2007-top1", "flowers102", "caltech101", "sun397")
"""The sets of Tables 3 and S2; its VOC2007 is a top-1 accuracy."""

TRANSFER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "transfer-linear": {
        "infonce": (87.74, 65.40, 69.38, 90.03, 79.54, 49.62),
        "flatnce": (87.92, 65.76, 69.66, 90.23, 81.23, 51.31),
    },
    "transfer-finetune": {
        "infonce": (94.61, 76.67, 69.57, 93.58, None, 56.97),
        "flatnce": (95.50, 78.92, 70.73, 95.02, None, 58.37),
    },
}
"""Tables 3 and S2, top-1 in per cent, by set; Caltech-101 is not fine-tuned on."""

FRACTIONS = (0.01, 0.1)

SEMI = {
    "supervised": {0.01: (5.25, 14.40), 0.1: (41.98, 67.05)},
    "infonce": {0.01: (33.44, 61.29), 0.1: (54.62, 79.89)},
    "flatnce": {0.01: (36.35, 64.59), 0.1: (56.51, 81.32)},
}
"""Table S4, top-1 and top-5 in per cent. SimCLR's 54.62 is possibly a slip (erratum 24)."""


def printed_at(epoch: float, numbers: tuple[float, ...]) -> float | None:
    """The printed share at an epoch of :data:`EPOCHS`, or None at another.

    Arguments:
        epoch: Which.
        numbers: Per cent, one an epoch.

    Examples:
        >>> printed_at(100.0, TABLE_2["flatnce"]), printed_at(15.0, TABLE_2["flatnce"])
        (0.5674, None)
    """
    known = dict(zip(EPOCHS, numbers, strict=True))
    found = known.get(round(epoch)) if abs(epoch - round(epoch)) < 0.01 else None
    return None if found is None else round(found / 100, 6)
