"""Runs compared: groups, pairs, intervals, and the page that says so."""

import itertools
import json
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from flatnce.pretrain.page.compare import compare_runs, group_runs
from flatnce.pretrain.page.contrasts import Paired, paired, read_runs, seeds_needed
from flatnce.pretrain.runs.log import RunLog, read_run
from made_runs import charts_of, html_without_charts, write_pairs, write_run


def differences_of(runs, **asked) -> list[dict]:
    return compare_runs(runs, **asked).plain()


def page_of_runs(runs, whole_names=False, **asked):
    return compare_runs(runs, **asked).page(whole_names)


def curve_of(made):
    """The first chart that is not a forest plot."""
    return next(chart for chart in charts_of(made) if "forest" not in chart.name)


def page(runs, **asked) -> str:
    return html_without_charts(page_of_runs(runs, **asked))


def crossed(folder, seeds=(0, 1, 2), sizes=(32, 64)):
    """FlatNCE is better by 0.1 at the first batch size and by 0.15 at the second."""
    runs = []
    for number, size in enumerate(sizes):
        for seed in seeds:
            base = 0.2 * number + 0.001 * seed * (number + 1)
            for objective, gain in (("infonce", 0.0), ("flatnce", 0.1 + 0.05 * number)):
                place = folder / f"{objective}-{size}-{seed}"
                shift = base + gain * (1 + 0.01 * seed)
                runs.append(write_run(place, objective, seed, shift, batch_size=size))
    return runs


def difference(runs, measure="linear on digits", **asked) -> dict:
    return next(one for one in differences_of(runs, **asked) if measure in one["measure"])


# Pairs and intervals.


def test_the_interval_is_the_paired_t_tests():
    first, second = [3.1, 4.0, 5.5, 2.2], [1.0, 2.5, 3.0, 2.0]
    found = paired(dict(enumerate(first)), dict(enumerate(second)))
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high))
    assert found.settled == (stats.ttest_rel(first, second).pvalue < 0.05)


def test_only_shared_seeds_are_paired_and_an_open_question_needs_more():
    found = paired({0: 1.0, 1: 2.0, 2: 0.3, 7: 50.0}, {1: 1.5, 0: 0.0, 2: 0.0, 9: -50.0})
    assert found.pairs == 3 and found.mean == pytest.approx(0.6)
    assert not found.settled and found.seeds_needed > 3


@pytest.mark.parametrize("shared, mean", [({}, None), ({0: 1.0}, 0.5), ({0: 1.0, 1: 3.0}, 0.5)])
def test_fewer_than_three_pairs_have_no_interval(shared, mean):
    found = paired({key: value + 0.5 for key, value in shared.items()}, shared)
    assert found == Paired(len(shared), mean, 0.0 if len(shared) > 1 else None)
    assert not found.settled and found.word in ("no pair", "too few")


@pytest.mark.parametrize("mean, sd", [(0.5, 1.0), (1.0, 1.0), (-0.2, 0.5)])
def test_seeds_needed_find_the_difference_in_four_of_five_cases(mean, sd):
    n = seeds_needed(mean, sd)
    draws = np.random.default_rng(0).normal(mean, sd, (4000, n))
    found = (stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=0.05)
    fewer = np.random.default_rng(1).normal(mean, sd, (4000, n - 2))
    assert (stats.ttest_1samp(fewer, 0, axis=1).pvalue < 0.05).mean() < found


@pytest.mark.parametrize("mean, needed", [(0.0, None), (1e-6, None), (1e6, 4)])
def test_what_cannot_or_need_not_be_settled(mean, needed):
    assert seeds_needed(mean, 1.0, 3) == needed


# Groups.


def test_groups_are_made_by_what_differs_but_the_seed(tmp_path):
    groups, names = group_runs(read_runs(write_pairs(tmp_path, [0.1, 0.2])))
    assert names == ["objective"]
    assert [group.name for group in groups] == ["InfoNCE", "FlatNCE"]
    assert [len(group.runs) for group in groups] == [2, 2]


def test_bookkeeping_does_not_keep_runs_apart_and_how_images_are_read_does(tmp_path):
    runs = write_pairs(tmp_path, [0.1, 0.2])
    for number, run in enumerate(runs):
        header = json.loads((run / "config.json").read_text())
        header["config"]["watch"] = {"pool": 64 + number, "wandb": f"s{number}", "log_every": 5}
        header["config"]["data"] |= {} if number % 3 else {"stream": False, "workers": number}
        (run / "config.json").write_text(json.dumps(header))
    assert group_runs(read_runs(runs))[1] == ["objective"]
    assert difference(runs)["pairs"] == 2
    header["config"]["data"]["stream"] = True
    (runs[-1] / "config.json").write_text(json.dumps(header))
    assert group_runs(read_runs(runs))[1] == ["stream", "objective"]


@pytest.mark.parametrize("against, first", [(None, "InfoNCE"), ("flatnce", "FlatNCE")])
def test_the_group_to_compare_with_comes_first(tmp_path, against, first):
    runs = write_pairs(tmp_path, [0.1, 0.2])
    found = differences_of(list(reversed(runs)), against=against)
    assert {one["against"] for one in found} == {first}


def settings_of(run):
    return {name: value for part in run.config.values() for name, value in part.items()}


def by_definition(directories, setting, measure="linear"):
    """Pairs of runs that agree in every setting but one: differences by place and values."""
    found = {}
    runs = [read_run(directory) for directory in directories]
    for one, other in itertools.permutations(runs, 2):
        mine, theirs = settings_of(one), settings_of(other)
        if [name for name in mine if mine[name] != theirs[name]] == [setting]:
            rest = tuple(v for k, v in mine.items() if k not in (setting, "seed"))
            key = rest, mine[setting], theirs[setting]
            top = [run.results["evaluations"][0]["top1"] for run in (one, other)]
            found.setdefault(key, []).append(top[0] - top[1])
    return found


@pytest.mark.parametrize("setting", ["objective", "batch_size"])
def test_every_contrast_is_within_equal_other_settings_and_paired_by_seed(tmp_path, setting):
    runs = [*crossed(tmp_path), write_run(tmp_path / "alone", "dcl", 9, batch_size=16)]
    expected = by_definition(runs, setting)
    found = [
        one
        for one in differences_of(runs)
        if "linear" in one["measure"] and list(one["settings"]["group"]) == [setting]
    ]
    assert len(found) == 2 and {one["pairs"] for one in found} == {3}
    for one in found:
        sides = [one["settings"][side][setting] for side in ("group", "against")]
        ((within,),) = [one["settings"]["within"].values()]
        (same,) = [d for (rest, *both), d in expected.items() if both == sides and within in rest]
        assert one["mean"] == pytest.approx(statistics.fmean(same))
        test = stats.ttest_1samp(same, 0).confidence_interval()
        assert one["interval"] == pytest.approx((test.low, test.high))
    pooled = difference(runs, by=[setting], pool=True)
    every = [d for (_, *both), ds in expected.items() if both == sides for d in ds]
    assert pooled["pairs"] == 6 and pooled["mean"] == pytest.approx(statistics.fmean(every))
    assert pooled["within"].startswith("pooled over")


def test_settings_that_only_differ_together_are_contrasted_together(tmp_path):
    runs = [
        write_run(tmp_path / f"{o}-{seed}", o, seed, 0.1 * (o == "flatnce"), batch_size=size)
        for o, size in (("infonce", 32), ("flatnce", 64))
        for seed in range(3)
    ]
    found = difference(runs)
    assert (found["group"], found["against"]) == (
        "FlatNCE, batch size 64",
        "InfoNCE, batch size 32",
    )
    assert found["pairs"] == 3 and found["mean"] == pytest.approx(0.1)


def test_numbers_are_in_order_and_compared_with_the_smallest_or_with_what_is_asked(tmp_path):
    runs = crossed(tmp_path, sizes=(128, 32, 64))
    found = [one for one in differences_of(runs, by=["batch_size"]) if "linear" in one["measure"]]
    assert [one["group"] for one in found] == ["batch size 64", "batch size 128"] * 2
    assert {one["against"] for one in found} == {"batch size 32"}
    assert difference(runs, by=["batch_size"], against="128")["against"] == "batch size 128"


def test_the_page_begins_with_a_forest_plot_of_the_measure_that_was_asked(tmp_path):
    runs = crossed(tmp_path)
    made = page_of_runs(runs)
    assert made.sections[0].heading == "linear on digits, test images"
    assert made.lead.startswith("linear on digits, test images: FlatNCE − InfoNCE, batch size ")
    forest = charts_of(made)[0]
    assert forest.name == "chart-forest-objective-InfoNCE"
    assert forest.data[0].y == pytest.approx([0.101, 0.1515]) and forest.data[0].spread[0] > 0
    assert charts_of(made)[1].name == "chart-forest-batch-size-batch-size-32"
    assert "<svg" in forest.svg()
    few = charts_of(page_of_runs(crossed(tmp_path / "few", seeds=(0, 1)), measure="large-pool"))[0]
    assert few.data[0].spread == [None, None]
    with pytest.raises(ValueError, match="measure='nothing' is unknown"):
        page_of_runs(runs, measure="nothing")


def test_many_groups_are_contrasted_and_drawn_by_one_setting(tmp_path):
    runs = crossed(tmp_path, seeds=(0,), sizes=range(2, 12))
    made = compare_runs(runs)
    assert sum("linear" in one["measure"] for one in made.plain()) == 10 + 2 * 9
    html = html_without_charts(made.page())
    assert "20 runs in 2 groups by objective" in html


def test_groups_of_long_names_get_a_letter_and_the_page_says_how_they_differ(tmp_path):
    runs = [
        write_run(tmp_path / f"{o}-{size}-{seed}", o, seed, 0.1 * seed, batch_size=size)
        for o in ("infonce", "flatnce")
        for size in (32, 64)
        for seed in (0, 1)
    ]
    html = page(runs)
    assert "<h1>Comparison of 4 groups by objective, batch size</h1>" in html
    lead = html[html.index('id="lead"') : html.index("</header>")]
    assert (
        "A: InfoNCE, batch size 32 (2 seeds); B: as A but batch size 64 (2 seeds); C: as A "
        in lead
    )
    assert "D: FlatNCE, batch size 64 (2 seeds)." in lead
    first = curve_of(page_of_runs(runs))
    assert [line.label for line in first.data[:4]] == ["A", "B", "C", "D"]
    # For papers, which have no list beside the chart.
    spelt = curve_of(page_of_runs(runs, whole_names=True))
    assert spelt.data[0].label == "A: InfoNCE, batch size 32"


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path):
    runs = [write_run(tmp_path / f"r{seed}", seed=seed, shift=0.1 * seed) for seed in range(3)]
    html = page(runs)
    assert "3 runs in 1 groups" in html and "There is nothing to compare" in html
    assert f"{80:.2f} ± {10:.2f} % (3)" in html  # the linear probe, pooled


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"by": ["objectiv"]}, "did you mean 'objective'"),
        ({"by": ["seed"]}, "runs are paired by seed"),
        ({"against": "dcl"}, "choose one of infonce, flatnce"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, asked, said):
    with pytest.raises(ValueError, match=said):
        differences_of(write_pairs(tmp_path, [0.1]), **asked)


def test_one_run_twins_and_other_kinds_are_refused(tmp_path):
    first, twin = write_run(tmp_path / "first"), write_run(tmp_path / "twin")
    RunLog(tmp_path / "demo", kind="demo", config={})
    many = [write_run(tmp_path / f"b{n}", batch_size=n, finished=False) for n in range(2, 15)]
    with pytest.raises(ValueError, match="13 groups"):
        page_of_runs(many, by=["batch_size"])
    with pytest.raises(ValueError, match="at least two"):
        differences_of([first])
    with pytest.raises(ValueError, match="the same settings and seed"):
        differences_of([first, twin])
    with pytest.raises(ValueError, match="holds a demo run"):
        differences_of([first, tmp_path / "demo"])


# Numbers and words.


def test_differences_are_those_of_the_runs(tmp_path):
    given = [0.02, 0.03, 0.01, 0.02]
    found = difference(write_pairs(tmp_path, given))
    assert found["mean"] == pytest.approx(0.02) and found["pairs"] == 4
    half = stats.t.ppf(0.975, 3) * statistics.stdev(given) / math.sqrt(4)
    assert found["interval"] == pytest.approx([0.02 - half, 0.02 + half])
    assert found["settled"] and found["seeds_needed"] is None


@pytest.mark.parametrize(
    "given, said",
    [
        ([0.02, 0.03, 0.01, 0.02], "settled: higher"),
        ([-0.02, -0.021, -0.019], "settled: lower"),
        ([0.04, -0.02, 0.01], "more pairs needed"),
        ([0.02], "one pair: too few to tell"),
        ([0.02, 0.03], "2 pairs: too few for an interval"),
    ],
)
def test_the_page_says_what_is_settled_and_what_is_open(tmp_path, given, said):
    assert said in page(write_pairs(tmp_path, given))


def test_an_unfinished_run_is_drawn_but_not_counted(tmp_path):
    runs = write_pairs(tmp_path, [0.02, 0.03])
    runs.append(write_run(tmp_path / "going", "flatnce", 2, finished=False))
    assert difference(runs)["pairs"] == 2
    html = page(runs)
    assert "going: drawn, but not in the tables" in html and "FlatNCE (3 seeds)" in html


def test_runs_of_which_none_is_finished_have_curves_only(tmp_path):
    runs = [write_run(tmp_path / o, o, finished=False) for o in ("infonce", "flatnce")]
    html = page(runs)
    assert "No run has finished" in html and "Seeds pooled" not in html
    assert charts_of(page_of_runs(runs))


def test_curves_are_means_with_their_spread(tmp_path):
    compared = page_of_runs(write_pairs(tmp_path, [0.1, 0.3]))
    charts = {chart.name: chart for chart in charts_of(compared)}
    infonce, flatnce = charts["chart-knn"].data
    # Seed 1 lies 0.01 above seed 0, and FlatNCE 0.1 and 0.3 above InfoNCE.
    assert infonce.y[-1] == pytest.approx(0.9 + 0.005)
    assert flatnce.y[-1] == pytest.approx(0.9 + 0.205)
    assert flatnce.spread[-1] == pytest.approx(0.21 / math.sqrt(2))


def test_what_was_set_alike_is_not_drawn(tmp_path):
    names = [chart.name for chart in charts_of(page_of_runs(write_pairs(tmp_path, [0.1])))]
    assert "chart-loss" in names and "chart-temperature" not in names
