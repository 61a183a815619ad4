"""Made cases for the doctor, each with the kinds of findings that are true of it by construction.

A case is a function from a generator to the arguments of ``flatnce.doctor``. Sizes, cosines and
temperatures are also drawn, within ranges in which the label stays true; a comment at each case
gives the reason. Cosines of random rows on a sphere of d dimensions have variance 1/d. So at
temperature t the gap is about log m + 1/(2 d t^2) - c/t for positives at cosine c, and the
negatives' ESS about exp(-1/(d t^2)).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.functional import normalize


@dataclass(frozen=True)
class Case:
    """A labelled case: arguments for the doctor, and what is true of them."""

    arguments: dict
    truth: dict = field(default_factory=dict)


CASES: dict[str, tuple[frozenset[str], Callable[[torch.Generator], Case]]] = {}


def case(*kinds):
    """Register a function as a case of these kinds; without kinds, as healthy."""

    def register(function):
        CASES[function.__name__.replace("_", " ")] = (frozenset(kinds), function)
        return function

    return register


def uniform(g, low, high):
    return low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64))


def sphere(g, n, d):
    return normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)


def turned(g, z, cosine, spread=0.05):
    """Rows at about a given cosine to the given rows, in random directions."""
    n, d = z.shape
    noise = torch.randn(n, d, generator=g, dtype=torch.float64)
    across = normalize(noise - (noise * z).sum(dim=1, keepdim=True) * z, dim=1)
    c = cosine + spread * torch.randn(n, 1, generator=g, dtype=torch.float64)
    c = c.clamp(-0.999, 0.999)
    return c * z + (1 - c.square()).sqrt() * across


def pair(g, n, d, cosine, spread=0.05):
    z = sphere(g, n, d)
    return {"z1": z.float(), "z2": turned(g, z, cosine, spread).float()}


def size(g, low=96, high=320):
    return int(uniform(g, low, high))


# Healthy: gap near 0, tens of effective negatives, nothing else wrong.


@case()
def healthy(g):
    return Case(pair(g, size(g), 128, uniform(g, 0.45, 0.6)) | {"temperature": 0.1})


@case()
def healthy_without_a_temperature(g):
    return Case(pair(g, size(g), 128, uniform(g, 0.45, 0.6)))


@case()
def healthy_small_batch(g):
    # 30 negatives or more; gap log 46 + 0.1 - 2.2 = 1.7
    return Case(pair(g, size(g, 16, 32), 128, uniform(g, 0.4, 0.5)) | {"temperature": 0.2})


@case()
def healthy_two_towers(g):
    given = pair(g, size(g), 256, uniform(g, 0.3, 0.4)) | {"temperature": 0.07}
    return Case(given | {"layout": "two_tower"})


@case()
def healthy_low_rank(g):
    # A spectrum that decays as that of trained heads, so that a quarter of the directions is used.
    fall = torch.arange(1, 129).double() ** -1.25
    n = size(g, 256, 400)
    z, noise = (normalize(sphere(g, n, 128) * fall, dim=1) for _ in range(2))
    z2 = normalize(z + 0.4 * noise, dim=1)
    return Case({"z1": z.float(), "z2": z2.float(), "temperature": 0.2})


@case()
def healthy_in_classes(g):
    # Ten classes whose members are at cosine 0.2, positives at 0.6: the class carries at most 40 %
    # of the negatives' weight, and no negative is as near as a positive.
    n = size(g, 200, 320)
    labels = torch.randint(0, 10, (n,), generator=g)
    z = normalize(0.45 * sphere(g, 10, 256)[labels] + 0.89 * sphere(g, n, 256), dim=1)
    given = {"z1": z.float(), "z2": turned(g, z, 0.6).float(), "labels": labels}
    return Case(given | {"temperature": 0.15})


@case()
def healthy_in_float16(g):
    given = pair(g, size(g), 128, uniform(g, 0.45, 0.6))
    return Case({"z1": 8 * given["z1"].half(), "z2": 8 * given["z2"].half(), "temperature": 0.1})


@case()
def healthy_in_batches(g):
    given = pair(g, 512, 128, uniform(g, 0.3, 0.4)) | {"temperature": 0.1}
    return Case(given | {"batch_size": 64})


# Saturated: the gap is below log(0.05 / 0.95) = -2.9 by a margin.


@case("saturated")
def saturated(g):
    # gap log 200 + 0.8 - 13 = -7
    return Case(pair(g, size(g), 128, uniform(g, 0.9, 0.97), 0.01) | {"temperature": 0.07})


@case("saturated")
def saturated_small_batch(g):
    # gap log 62 + 0.4 - 9.2 = -4.7
    return Case(pair(g, size(g, 24, 40), 128, uniform(g, 0.9, 0.95), 0.01) | {"temperature": 0.1})


@case("saturated")
def saturated_two_towers(g):
    given = pair(g, size(g), 256, uniform(g, 0.6, 0.7), 0.02) | {"temperature": 0.05}
    return Case(given | {"layout": "two_tower"})


# Collapsed: cosines of different samples above 0.975, which is what uniformity -0.1 means.


@case("collapsed")
def collapsed(g):
    return Case(cone(g, size(g), 128, 0.05) | {"temperature": 0.1})


@case("collapsed")
def collapsed_to_almost_a_point(g):
    return Case(cone(g, size(g), 128, 0.003) | {"temperature": 0.1})


@case("collapsed")
def collapsed_two_towers(g):
    return Case(cone(g, size(g), 64, 0.05) | {"temperature": 0.07, "layout": "two_tower"})


@case("collapsed")
def collapsed_first_tower(g):
    return Case(one_tower(g, 0) | {"temperature": 0.07, "layout": "two_tower"})


@case("collapsed")
def collapsed_second_tower(g):
    return Case(one_tower(g, 1) | {"temperature": 0.07, "layout": "two_tower"})


def one_tower(g, collapsed):
    """The rows of one tower at one point, those of the other spread."""
    n = size(g)
    views = [sphere(g, n, 64).float(), cone(g, n, 64, 0.05)["z1"]]
    return {"z1": views[1 - collapsed], "z2": views[collapsed]}


def cone(g, n, d, width):
    """All rows within a width of one point; positives half as far apart."""
    centre = sphere(g, 1, d)
    own = width * sphere(g, n, d)
    views = [normalize(centre + own + 0.5 * width * sphere(g, n, d), dim=1) for _ in range(2)]
    return {"z1": views[0].float(), "z2": views[1].float()}


@case("dimensional collapse")
def dimensional_collapse(g):
    return Case(flat(g, size(g), 128, 4) | {"temperature": 0.2})


@case("dimensional collapse")
def dimensional_collapse_wide_head(g):
    return Case(flat(g, size(g, 256, 400), 512, 8) | {"temperature": 0.2})


@case("dimensional collapse")
def dimensional_collapse_to_a_plane(g):
    return Case(flat(g, size(g), 64, 3) | {"temperature": 0.3})


def flat(g, n, d, k):
    """Rows in k of d dimensions except for a hundredth; positives at cosine 0.9."""
    inside = sphere(g, n, k)
    views = [inside, turned(g, inside, 0.9, 0.03)]
    basis = torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64)).Q
    views = [normalize(v @ basis.T + 0.01 * sphere(g, n, d), dim=1).float() for v in views]
    return {"z1": views[0], "z2": views[1]}


# Views and samples that are copies.


@case("identical views")
def identical_views(g):
    # gap log 400 + 0.04 - 3.3 = 2.7: not saturated
    z = sphere(g, size(g), 128).float()
    return Case({"z1": z, "z2": z.clone(), "temperature": 0.3})


@case("identical views")
def some_identical_views(g):
    given = pair(g, size(g), 128, 0.5)
    n = len(given["z1"])
    same = torch.randperm(n, generator=g)[: n // 4]
    given["z2"][same] = given["z1"][same]
    return Case(given | {"temperature": 0.2})


@case("identical views", "saturated")
def identical_views_and_saturated(g):
    z = sphere(g, size(g), 128).float()
    return Case({"z1": z, "z2": z.clone(), "temperature": 0.05})


@case("duplicates")
def duplicates(g):
    return Case(with_copies(g, pair(g, size(g), 128, 0.5), 0.1)[0] | {"temperature": 0.1})


@case("duplicates")
def duplicate_documents(g):
    # Different queries, one document: the second tower's rows alone are copies.
    given = pair(g, size(g), 128, 0.5)
    n = len(given["z1"])
    some = torch.randperm(n, generator=g)[: n // 10 * 2]
    half = len(some) // 2
    given["z2"][some[:half]] = given["z2"][some[half : 2 * half]]
    queries = turned(g, given["z2"].double(), 0.5)
    given["z1"] = queries.float()
    return Case(given | {"temperature": 0.1, "layout": "two_tower"})


@case()
def duplicates_with_ids(g):
    given, ids = with_copies(g, pair(g, size(g), 128, 0.5), 0.1)
    return Case(given | {"temperature": 0.1, "ids": ids})


def with_copies(g, given, share):
    n = len(given["z1"])
    order = torch.randperm(n, generator=g)
    count = max(int(share * n), 2)
    to, of = order[:count], order[count : 2 * count]
    ids = torch.arange(n)
    ids[to] = ids[of]
    given["z1"][to], given["z2"][to] = given["z1"][of], given["z2"][of]
    return given, ids


@case("false negatives")
def false_negatives(g):
    return grouped(g, size(g, 192, 320), 4, 0.1)


@case("false negatives")
def many_false_negatives(g):
    return grouped(g, size(g, 192, 320), 24, 0.15)


@case("false negatives")
def few_false_negatives(g):
    return grouped(g, size(g, 256, 400), 2, 0.1)


@case("false negatives")
def false_negatives_two_towers(g):
    found = grouped(g, size(g, 192, 320), 8, 0.1)
    return Case(found.arguments | {"layout": "two_tower"}, found.truth)


def grouped(g, n, members, temperature):
    """Samples in groups: all views of a group are as similar as positives."""
    n = n // members * members
    group = torch.arange(n) // members
    centre = sphere(g, n // members, 128)[group]
    views = [turned(g, centre, 0.8, 0.02).float() for _ in range(2)]
    truth = {"rate": (members - 1) / (n - 1)}
    return Case({"z1": views[0], "z2": views[1], "temperature": temperature}, truth)


@case("false negatives")
def false_negatives_by_label(g):
    # Members of a class at cosine 0.35: a tenth of the negatives, with exp(3.5) times the weight.
    n = size(g, 200, 320)
    labels = torch.randint(0, 10, (n,), generator=g)
    z = normalize(0.6 * sphere(g, 10, 256)[labels] + 0.8 * sphere(g, n, 256), dim=1)
    given = {"z1": z.float(), "z2": turned(g, z, 0.75).float(), "labels": labels}
    return Case(given | {"temperature": 0.1})


# Too few negatives: 2 (n - 1), or n - 1 in two towers, under 16.


@case("too few negatives")
def too_few_negatives(g):
    return Case(pair(g, size(g, 5, 8), 128, 0.4) | {"temperature": 0.2})


@case("too few negatives")
def too_few_negatives_two_towers(g):
    given = pair(g, size(g, 4, 14), 128, 0.4) | {"temperature": 0.2}
    return Case(given | {"layout": "two_tower"})


@case("too few negatives")
def too_few_negatives_in_batches(g):
    return Case(pair(g, 256, 128, 0.4) | {"temperature": 0.2, "batch_size": 5})


@case("too few negatives", "saturated")
def too_few_negatives_and_saturated(g):
    return Case(pair(g, size(g, 5, 8), 128, 0.93, 0.01) | {"temperature": 0.1})


# Temperatures.


@case("temperature too high")
def temperature_too_high(g):
    # ESS exp(-1 / (128 t^2)) = 0.992 at t = 1
    return Case(pair(g, size(g), 128, 0.6) | {"temperature": uniform(g, 1.0, 3.0)})


@case("temperature too high", "not learning")
def temperature_too_high_and_not_learning(g):
    n = size(g)
    given = {"z1": sphere(g, n, 128).float(), "z2": sphere(g, n, 128).float()}
    return Case(given | {"temperature": uniform(g, 1.0, 3.0)})


@case("temperature too low")
def temperature_too_low(g):
    # One negative has nearly all weight, and scores above the positive in many rows.
    return Case(pair(g, size(g), 64, 0.33, 0.12) | {"temperature": uniform(g, 0.004, 0.008)})


@case("temperature too low", "saturated")
def temperature_too_low_and_saturated(g):
    return Case(pair(g, size(g), 64, 0.85, 0.02) | {"temperature": uniform(g, 0.004, 0.008)})


@case("not learning")
def not_learning(g):
    n = size(g)
    given = {"z1": sphere(g, n, 128).float(), "z2": sphere(g, n, 128).float()}
    return Case(given | {"temperature": 0.2})


@case("not learning")
def pairs_out_of_order(g):
    given = pair(g, size(g), 128, 0.6)
    return Case(given | {"z2": given["z2"].roll(1, 0), "temperature": 0.2})


# Broken rows, alone and with others.


@case("broken rows")
def broken_rows(g):
    given = pair(g, size(g), 128, 0.5)
    given["z1"][3] = torch.nan
    given["z2"][5, 7] = torch.inf
    given["z1"][9] = 0
    return Case(given | {"temperature": 0.1})


@case("broken rows", "duplicates")
def broken_rows_and_duplicates(g):
    given = with_copies(g, pair(g, size(g), 128, 0.5), 0.1)[0]
    given["z2"][0] = torch.nan
    return Case(given | {"temperature": 0.1})


@case("duplicates", "temperature too high")
def duplicates_and_temperature_too_high(g):
    given = with_copies(g, pair(g, size(g), 128, 0.5), 0.1)[0]
    return Case(given | {"temperature": uniform(g, 1.0, 3.0)})


@case("duplicates", "false negatives")
def duplicates_and_false_negatives(g):
    found = grouped(g, size(g, 192, 320), 4, 0.1)
    given = with_copies(g, found.arguments, 0.1)[0]
    return Case(given)


@case("dimensional collapse", "duplicates")
def dimensional_collapse_and_duplicates(g):
    given = with_copies(g, flat(g, size(g), 128, 4), 0.1)[0]
    return Case(given | {"temperature": 0.2})
