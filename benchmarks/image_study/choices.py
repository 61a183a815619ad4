"""The choices of the protocol's pieces, made by its rule from the records."""

import math

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
OBJECTIVES = tuple(NAMES)
ANCHOR = "-anchor"
"""Ends the name of an objective that has a temperature per anchor."""
BATCHES = (32, 128, 256, 512)
SCREENED = (32, 512)
"""Batches of the two screens, pieces 1 and 2."""
SMALL = 32
"""The batch at which the main claims are decided."""
EVALUATION_SEEDS = (10, 11, 12, 13, 14)
THREE_SEEDS = EVALUATION_SEEDS[:3]
"""The seeds of the pieces with three seeds."""
CURVE = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Temperatures of the screens and of the temperature curve."""


def score(record):
    """What a choice maximises: linear accuracy, then kNN with k = 20."""
    found = record["evaluation"]
    return found["linear"], found["knn_20"]


def best(records):
    """The record with the best score; the first of equal ones."""
    return max(records, key=score)


def objective_of(record):
    return record["config"]["loss"]["objective"]


def temperature_of(record):
    return record["config"]["loss"]["temperature"]


def target_of(record):
    return record["config"]["loss"]["ess"]


def rate_of(record):
    return record["config"]["optimizer"]["rate"]


def batch_of(record):
    return record["config"]["run"]["batch_size"]


def screening(records, objective, batch):
    """The screening runs of an objective at a batch, the added rates included."""
    pieces = [one for one in records if one["piece"] <= 2 or one["piece_step"] == "rate"]
    return [one for one in pieces if (objective_of(one), batch_of(one)) == (objective, batch)]


def fixed_temperatures(records, objective, batch):
    """The runs of piece 3 at a batch."""
    return [one for one in step_of(records, 3, str(batch)) if objective_of(one) == objective]


def targets(records, objective):
    """The runs of piece 4."""
    return [one for one in records if one["piece"] == 4 and objective_of(one) == objective]


def step_of(records, piece, step):
    """The runs of one step of a piece."""
    return [one for one in records if (one["piece"], one["piece_step"]) == (piece, step)]


def rate_at(batch, objective, records):
    """The rate by the power law through the two chosen rates of the screens."""
    small, large = SCREENED
    chosen = {one: rate_of(best(screening(records, objective, one))) for one in SCREENED}
    power = math.log(chosen[large] / chosen[small]) / math.log(large / small)
    return float(f"{chosen[small] * (batch / small) ** power:.4g}")


def best_batch_of_infonce(records, batches=BATCHES):
    """The batch at which InfoNCE is best in piece 3."""
    runs = [one for batch in batches for one in fixed_temperatures(records, "infonce", batch)]
    return batch_of(best(runs))


def second_batch(records):
    """The other batch of piece 5: InfoNCE's best, or the best of the others if that is 32."""
    chosen = best_batch_of_infonce(records)
    others = [batch for batch in BATCHES if batch != SMALL]
    return best_batch_of_infonce(records, others) if chosen == SMALL else chosen


def beyond(values, chosen, factor=2):
    """The values to add by rule 4: one beyond each end of a grid at which a choice lies."""
    least, most = min(values), max(values)
    return [least / factor] * (least in chosen) + [most * factor] * (most in chosen)
