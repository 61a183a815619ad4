"""The paper's figures from the image study: the words of the page are those of its records."""

import json
import math
from collections import defaultdict
from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from paths import ROOT

STUDY = ROOT / "benchmarks" / "image_study"


@pytest.fixture
def figures(study_modules):
    import paper_figures

    return paper_figures


@pytest.fixture(scope="module")
def records():
    found = sorted((STUDY / "records").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def pearson(pairs):
    """The correlation coefficient by its definition."""
    x, y = (fmean(values) for values in zip(*pairs, strict=True))
    both = sum((a - x) * (b - y) for a, b in pairs)
    return both / math.sqrt(
        sum((a - x) ** 2 for a, _ in pairs) * sum((b - y) ** 2 for _, b in pairs)
    )


def centred(pairs, groups):
    """The pairs less the means of their group, by loops."""
    members = defaultdict(list)
    for pair, group in zip(pairs, groups, strict=True):
        members[group].append(pair)
    found = []
    for own in members.values():
        x, y = (fmean(values) for values in zip(*own, strict=True))
        found += [(a - x, b - y) for a, b in own]
    return found


def of_batch_32(records, objective, ess, temperature, piece):
    def fits(one):
        loss, batch = one["config"]["loss"], one["config"]["run"]["batch_size"]
        own = loss["objective"], loss["ess"], loss["temperature"], batch, one["piece"]
        return own == (objective, ess, temperature, 32, piece) and one["seed"] >= 10

    return list(filter(fits, records))


def checks(run):
    return [line for line in run["metrics"] if "pool_mi" in line]


def figure_1(records):
    def pool(runs, place=-1):
        return fmean(checks(run)[place]["pool_mi"] for run in runs)

    def linear(runs):
        return fmean(100 * run["evaluation"]["linear"] for run in runs)

    cold = {name: of_batch_32(records, name, None, 0.05, 6) for name in ("infonce", "flatnce")}
    shares = [
        fmean(run["metrics"][-1]["mi"] / run["metrics"][-1]["mi_ceiling"] for run in runs)
        for runs in cold.values()
    ]
    assert len({f"{share:.2f}" for share in shares}) == 1
    yield f"reaches {100 * shares[0]:.0f} % of log 63, as that of FlatNCE does"
    grown = [pool(runs) - pool(runs, 0) for runs in cold.values()]
    yield f"still grows by {grown[0]:.2f} nats, and FlatNCE's by {grown[1]:.2f}"
    ends = [pool(runs) for runs in cold.values()]
    yield "At the end InfoNCE has {:.2f} nats in the pool and FlatNCE {:.2f}.".format(*ends)
    info, flat = cold["infonce"], of_batch_32(records, "flatnce", None, 0.1, 5)
    yield f"At τ = 0.05, InfoNCE has {pool(info):.2f} nats and {linear(info):.2f} %."
    yield f"FlatNCE at τ = 0.1 has {pool(flat):.2f} nats and {linear(flat):.2f} %."
    arms = [
        ("infonce", None, 0.3),
        ("infonce", 0.3, 0.1),
        ("flatnce", None, 0.1),
        ("flatnce", 0.075, 0.1),
    ]
    runs = {arm: of_batch_32(records, *arm, 5) for arm in arms}
    assert {len(own) for own in runs.values()} == {5}
    tuned = arms[0]
    assert linear(runs[tuned]) > max(linear(runs[arms[1]]), linear(info))
    assert pool(runs[tuned]) == min(pool(own) for own in [*runs.values(), *cold.values()])
    yield f"τ = 0.3, has the least information of this table ({pool(runs[tuned]):.2f} nats)"


def figure_2(records):
    linear = {}
    for one in records:
        loss, batch = one["config"]["loss"], one["config"]["run"]["batch_size"]
        if one["piece"] == 5 and loss["ess"] is None:
            linear[loss["objective"], batch, one["seed"]] = 100 * one["evaluation"]["linear"]

    def lost(objective):
        seeds = range(10, 15)
        return [linear[objective, 128, seed] - linear[objective, 32, seed] for seed in seeds]

    info, flat = lost("infonce"), lost("flatnce")
    told = f"InfoNCE loses {fmean(info):.2f} points and FlatNCE {fmean(flat):.2f}. FlatNCE loses"
    less = [one - other for one, other in zip(info, flat, strict=True)]
    low, high = ttest_1samp(less, 0).confidence_interval()
    assert low < 0 < high
    ends = f"{low:.2f} to {high:.2f}".replace("-", "−")
    yield f"{told} {fmean(less):.2f} points less ({ends}), so it is not shown to depend less"
    ahead = [linear["flatnce", 32, seed] - linear["infonce", 128, seed] for seed in range(10, 15)]
    assert ttest_1samp(ahead, 0).confidence_interval().low < 0
    yield "FlatNCE at batch 32 is not shown to exceed InfoNCE at 128, either."


def figure_4(records):
    records = [one for one in records if one["piece"] <= 6]
    batches = [one["config"]["run"]["batch_size"] for one in records]
    lengths = [one["results"]["epochs"] for one in records]
    images = [one["evaluation"]["on"] for one in records]
    groups = list(zip(batches, lengths, images, strict=True))
    linear = [one["evaluation"]["linear"] for one in records]
    pool = [checks(one)[-1]["pool_mi"] for one in records]
    pairs = list(zip(pool, linear, strict=True))
    yield f"The {len(records)} runs of pieces 1 to 6"
    yield f"Over all runs ρ is {pearson(pairs):.2f}, close to the paper's 0.65"
    inner = {}
    for name in ("infonce", "flatnce"):
        own = [one["config"]["loss"]["objective"] == name for one in records]
        chosen = [[v for v, mine in zip(vs, own, strict=True) if mine] for vs in (pairs, groups)]
        inner[name] = f"{pearson(centred(*chosen)):.2f}".replace("-", "−")
    within = f"{pearson(centred(pairs, groups)):.2f}"
    yield f"ρ is {within}, for InfoNCE {inner['infonce']} and for FlatNCE {inner['flatnce']}."
    lines = [line for one in records for line in checks(one)]
    pairs = [(line["pool_mi"], line["knn"]) for line in lines]
    each = [pair for pair in zip(batches, lengths, strict=True) for _ in range(2)]
    inner = pearson(
        centred(
            pairs, [(*own, round(line["epoch"])) for own, line in zip(each, lines, strict=True)]
        )
    )
    yield f"For kNN it is {pearson(pairs):.2f} and, centred, {inner:.2f}."
    runs = defaultdict(dict)
    for one in records:
        loss, batch = one["config"]["loss"], one["config"]["run"]["batch_size"]
        if one["results"]["epochs"] == 100 and loss["ess"] is None:
            own = runs[loss["objective"], batch, one["seed"]]
            last, linear = one["metrics"][-1], one["evaluation"]["linear"]
            own[loss["temperature"]] = last["pool_mi"], linear
    for own in runs.values():
        ordered = [own[temperature][0] for temperature in sorted(own)]
        assert ordered == sorted(ordered, reverse=True)
    best = {
        max(own, key=lambda temperature, own=own: own[temperature][1])
        for (objective, *_), own in runs.items()
        if objective == "infonce"
    }
    assert best == {0.2, 0.3}
    yield "InfoNCE's accuracy is highest at a temperature of 0.2 or 0.3."


def figure_5(records):
    def of(runs, key, epoch):
        nearest = [min(r["metrics"], key=lambda line: abs(line["epoch"] - epoch)) for r in runs]
        return fmean(line[key] for line in nearest)

    def both(runs, key="ess_paper"):
        return of(runs, key, 5), of(runs, key, 100)

    cold = [of_batch_32(records, name, None, 0.05, 6) for name in ("infonce", "flatnce")]
    held, tuned = (
        of_batch_32(records, "flatnce", 0.075, 0.1, 5),
        of_batch_32(records, "infonce", None, 0.3, 5),
    )
    yield "InfoNCE's ESS falls from {:.3f} to {:.3f}, and FlatNCE's".format(*both(cold[0]))
    yield "rises from {:.3f} to {:.3f}. FlatNCE-ESS".format(*both(cold[1]))
    yield "FlatNCE-ESS rises from {:.3f} to {:.3f}.".format(*both(held))
    yield "its ESS rises, too ({:.3f} to {:.3f})".format(*both(tuned))
    others = (
        of_batch_32(records, "flatnce", None, 0.1, 5),
        of_batch_32(records, "infonce", 0.3, 0.1, 5),
    )
    for runs in (*cold, held, tuned, *others):
        early, late = both(runs, "ess_with_positive")
        assert early > late
    yield "With the positive, every arm falls."


def figure_6(records):
    held = {"infonce": {}, "flatnce": {}}
    for one in records:
        if one["piece"] == 4:
            loss = one["config"]["loss"]
            held[loss["objective"]][loss["ess"]] = one
    lost, near, paper, tops = [], [], [], []
    own = [run for runs in held.values() for run in runs.values()]
    accuracies = [checks(run)[0]["knn"] for run in own], [r["evaluation"]["linear"] for r in own]
    half = [196 * math.sqrt(fmean(p * (1 - p) for p in each) / 5000) for each in accuracies]
    yield "about ± {:.1f} for kNN and ± {:.1f} for linear accuracy. No seed is".format(*half)
    for runs in held.values():
        knn = {target: 100 * checks(one)[0]["knn"] for target, one in runs.items()}
        best = max(knn.values())
        near.append(best - min(knn[target] for target in (0.075, 0.15, 0.3)))
        lost.append(best - knn[0.6])
        paper += [checks(runs[target])[0]["ess_paper"] for target in (0.075, 0.15, 0.3)]
        tops.append(max(runs, key=lambda target, own=runs: own[target]["evaluation"]["linear"]))
    told = (
        "targets 0.075 to 0.3 are within {:.2f} points for FlatNCE and within {:.2f} for InfoNCE"
    )
    yield told.format(*reversed(near))
    yield "0.6 is {:.2f} and {:.2f} points below the best".format(*reversed(lost))
    yield f"targets are an ESS of {min(paper):.2f} to {max(paper):.2f}, which agrees"
    yield "InfoNCE's best target is {} and FlatNCE's {}.".format(*tops)


@pytest.mark.parametrize("sentences", [figure_1, figure_2, figure_4, figure_5, figure_6])
def test_the_words_of_the_page_are_those_of_the_records(sentences, records):
    page = " ".join((STUDY / "PAPER.md").read_text(encoding="utf-8").split())
    for words in sentences(records):
        assert words in page, words


def test_every_figure_is_drawn_and_shown(figures, records):
    import matplotlib.pyplot as plt

    page = (STUDY / "PAPER.md").read_text(encoding="utf-8")
    panels = dict.fromkeys((1, 2, 4, 5, 6), 2)
    assert figures.PICTURES.keys() == panels.keys()
    for number, draw in figures.PICTURES.items():
        figure = plt.figure()
        draw(figure, records)
        assert len(figure.axes) == panels[number]
        names = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
        assert any("FlatNCE" in name for name in names)
        assert any("InfoNCE" in name for name in names)
        plt.close(figure)
        assert f"(paper_{number}.png)" in page
        assert (STUDY / f"paper_{number}.png").is_file()


def held_by_batch(records):
    """The runs of FlatNCE with its target, by batch size."""
    found = defaultdict(list)
    for one in records:
        if (
            one["config"]["loss"]["objective"] == "flatnce"
            and one["config"]["loss"]["ess"] == 0.075
        ):
            found[one["config"]["run"]["batch_size"]].append(one)
    return found


def test_other_pages_say_what_the_records_hold(records):
    def says(page, words):
        text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
        assert words in text, words

    held = held_by_batch(records)
    raw = [fmean(run["metrics"][-1]["ess_paper"] for run in held[b]) for b in (32, 128, 256)]
    told = "it was {:.3f} at batch 32, {:.3f} at 128 and {:.3f} at 256 (FlatNCE,".format(*raw)
    says("explain/effective-sample-size.md", told)
    settled = [
        line["temperature"]
        for runs in held.values()
        for run in runs
        for line in run["metrics"]
        if line["epoch"] >= 5
    ]
    least, most = math.floor(1000 * min(settled)) / 1000, math.ceil(1000 * max(settled)) / 1000
    assert sorted(held) == [32, 128, 256]
    says("temperature.md", f"from epoch 5 of 100 on, it stayed between {least} and {most} in the")
    longer = sum(one["piece"] <= 6 for one in records)
    says("reproduce.md", f"compares {longer} longer runs in the same way")
