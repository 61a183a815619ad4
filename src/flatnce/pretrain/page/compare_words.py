"""A difference between two groups in plain words."""

from flatnce.pretrain.page.measures import Measure
from flatnce.pretrain.page.paired import FEW, MOST_SEEDS, Paired


def finding(measure: Measure, group: str, against: str, one: Paired) -> str:
    """A sentence or two about one difference."""
    if one.mean is None:
        return f"{group} and {against} have no seed in common that is finished in both."
    size = measure.written(one.mean, signed=True)
    start = f"{group} minus {against} is {size}"
    if one.low is None or one.high is None:
        return f"{start} in the one seed that both have: too few for an interval."
    between = measure.interval(one.low, one.high)
    start += f" (95 % interval {between}, {one.pairs} seeds)"
    return f"{start}: {remark(one)}."


def remark(one: Paired) -> str:
    """What a difference means, in a few words.

    Arguments:
        one: The difference.

    Examples:
        >>> remark(Paired(5, 1.0, 0.2, 0.75, 1.25))
        'settled: higher'
        >>> remark(Paired(5, 0.1, 0.2, -0.15, 0.35, 34))
        'open: about 29 more seeds would settle it'
    """
    if one.mean is None:
        return "no seed in common"
    if one.low is None:
        return "one seed: too few to tell"
    few = f"; {one.pairs} pairs are very few" if one.pairs < FEW else ""
    if one.sd == 0:
        return ("settled: equal" if one.mean == 0 else "the same in every seed") + few
    if one.settled:
        return f"settled: {'higher' if one.mean > 0 else 'lower'}{few}"
    if one.needed is None:
        return f"open, and so small that {MOST_SEEDS:,} seeds would not settle it{few}"
    more = one.needed - one.pairs
    return f"open: about {more:,} more seed{'' if more == 1 else 's'} would settle it{few}"
