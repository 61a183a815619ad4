"""The demo's results in plain words, every clause from the numbers of this run."""

import re
from typing import Any

from flatnce.paper.spread import standing


def findings_of(results: dict[str, Any]) -> list[dict[str, str]]:
    """Topics and texts, for the terminal and the page."""
    main = [case for case in results["cases"] if not case["contrary"]]
    warm = [case for case in results["cases"] if case["contrary"]]
    focus = focus_of(main)
    found = {
        "The ceiling": _ceiling(focus),
        "What it costs": _large_pool(focus, results),
        "By K": _by_size(main),
    }
    if warm:
        found["Not always"] = _warm(focus, warm)
    found["What the numbers are"] = _limits(results)
    # A hyphen before a digit is a minus.
    minus = re.compile(r"(?<![\w-])-(?=\d)")
    return [{"topic": topic, "text": minus.sub("−", text)} for topic, text in found.items()]


def focus_of(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The case to talk about: K = 8 where there is one, else the first."""
    return next((case for case in cases if case["candidates"] == 8), cases[0])


def _mean(case: dict[str, Any], objective: str, measure: str) -> float:
    return float(case["objectives"][objective][measure]["mean"])


def _task(case: dict[str, Any], objective: str) -> str:
    return f"{_mean(case, objective, 'k_mi'):.2f} of at most {case['log_k']:.2f} nats"


def _ceiling(case: dict[str, Any]) -> str:
    size, gain = case["candidates"], _mean(case, "infonce", "gain")
    return (
        f"With K = {size} candidates InfoNCE's own task ends at "
        f"{_task(case, 'infonce')} (log {size}). There its gradient is multiplied by {gain:.3f} "
        f"on average (the gain); FlatNCE drops that factor and goes on."
    )


def _large_pool(case: dict[str, Any], results: dict[str, Any]) -> str:
    infonce, flatnce = (_mean(case, name, "pool_mi") for name in ("infonce", "flatnce"))
    return (
        f"Asked to find partners among {results['pool']:,}, the critic trained "
        f"with InfoNCE shows {infonce:.2f} nats, the one trained with FlatNCE {flatnce:.2f}: "
        f"{standing(case['difference'])}. Same start, same pairs, same steps, same learning rate "
        f"({case['learning_rate']:g})."
    )


def _by_size(cases: list[dict[str, Any]]) -> str:
    each = ", ".join(
        f"{case['difference']['mean']:+.2f} at {case['candidates']}" for case in cases
    )
    return f"FlatNCE minus InfoNCE, in nats: {each}."


def _warm(focus: dict[str, Any], warm: list[dict[str, Any]]) -> str:
    first = warm[0]
    kept, kept_before = (_mean(case, "infonce", "gain") for case in (first, focus))
    text = (
        f"At inverse temperature {first['inverse_temperature']:g} and K = {first['candidates']} "
        f"InfoNCE's task ends at {_task(first, 'infonce')} and it keeps {kept:.2f} of the gradient"
    )
    if kept > 2 * kept_before:
        text += f", not {kept_before:.2f}, so FlatNCE has less to give back"
    each = [f"at learning rate {c['learning_rate']:g} {standing(c['difference'])}" for c in warm]
    text += f": {'; '.join(each)}."
    if any(max(case["difference"]["values"]) < 0 for case in warm):
        text += (
            " The two gradients differ only in each row's gain, and Adam removes what is common "
            "to all rows and steps. So where InfoNCE is ahead, it is by this weighting: rows and "
            "batches already solved count less."
        )
    return text


def _limits(results: dict[str, Any]) -> str:
    return (
        f"The truth is {results['nats']:g} nats; a pool of "
        f"{results['pool']:,} can show at most {results['pool_ceiling']:.2f} (its log), and every "
        "information figure is, on average, a lower bound, from pairs the critic never saw. ± is "
        f"the standard deviation over {len(results['seeds'])} seeds. FlatNCE helps the training "
        "signal; it is not a way to certify more information."
    )
