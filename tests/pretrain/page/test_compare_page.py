"""Runs compared: pairs, intervals, and the page that says so."""

import html
import itertools
import json
import math
import re
import statistics
from dataclasses import replace

import pytest
from scipy import stats

from flatnce.pretrain.page.compare import Paired, compare_runs, paired
from flatnce.pretrain.runs.log import RunLog, read_run
from made_runs import charts_of, html_without_charts, write_pairs, write_run


def differences_of(runs, **asked) -> list[dict]:
    return compare_runs(runs, **asked).plain()


def page(runs, **asked) -> str:
    return html_without_charts(compare_runs(runs, **asked).page())


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


def test_only_shared_seeds_are_paired():
    found = paired({0: 1.0, 1: 2.0, 2: 0.3, 7: 50.0}, {1: 1.5, 0: 0.0, 2: 0.0, 9: -50.0})
    assert found.pairs == 3 and found.mean == pytest.approx(0.6)
    assert not found.settled and found.reading == "open"


@pytest.mark.parametrize("shared, mean", [({}, None), ({0: 1.0}, 0.5), ({0: 1.0, 1: 3.0}, 0.5)])
def test_fewer_than_three_pairs_have_no_interval(shared, mean):
    found = paired({key: value + 0.5 for key, value in shared.items()}, shared)
    assert found == Paired(len(shared), mean, 0.0 if len(shared) > 1 else None)
    assert not found.settled and found.reading in ("no pair", "too few")


def test_differences_that_float32_rounds_are_zero():
    first, second = {0: 0.9 + 3e-8, 1: 0.5, 2: 0.7}, {0: 0.9, 1: 0.5, 2: 0.7 + 6e-8}
    assert paired(first, second) == Paired(3, 0.0, 0.0)
    assert paired({0: 0.9, 1: 0.5 + 3e-8}, {0: 0.5, 1: 0.9}).mean == 0.0
    assert paired({0: 0.9001}, {0: 0.9}).mean == pytest.approx(1e-4)


def test_equal_values_are_drawn_in_the_middle_of_an_axis_that_can_be_read(tmp_path):
    runs = write_pairs(tmp_path, [0.0, 3e-8, -3e-8])
    assert difference(runs)["mean"] == 0.0 == difference(runs)["sd"]
    found = re.search('data-values="([^"]+)"', charts_of(compare_runs(runs).page())[0].svg())
    low, high = json.loads(html.unescape(found[1]))["x"]["ends"]
    assert low == pytest.approx(-high) and 0.01 < high < 1.0  # in points


def test_bookkeeping_does_not_keep_runs_apart_and_how_images_are_read_does(tmp_path):
    runs = write_pairs(tmp_path, [0.1, 0.2])
    for number, run in enumerate(runs):
        header = json.loads((run / "config.json").read_text())
        header["config"]["watch"] = {"pool": 64 + number, "wandb": f"s{number}", "log_every": 5}
        header["config"]["data"] |= {} if number % 3 else {"stream": False, "workers": number}
        (run / "config.json").write_text(json.dumps(header))
    assert compare_runs(runs).differing == ["objective"]
    assert difference(runs)["pairs"] == 2
    header["config"]["data"]["stream"] = True
    (runs[-1] / "config.json").write_text(json.dumps(header))
    assert compare_runs(runs).differing == ["stream", "objective"]


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
    places = [ds for (_, *both), ds in expected.items() if both == sides]
    seeds = [statistics.fmean(ds) for ds in zip(*places, strict=True)]  # in one order of seeds
    assert pooled["pairs"] == 3 and pooled["mean"] == pytest.approx(statistics.fmean(seeds))
    test = stats.ttest_1samp(seeds, 0).confidence_interval()
    assert pooled["interval"] == pytest.approx((test.low, test.high))
    assert pooled["within"].startswith("pooled over")


def test_pooled_means_differ_by_the_difference_where_a_seed_lacks_a_setting(tmp_path):
    runs = [run for run in crossed(tmp_path) if run.name != "flatnce-64-1"]
    pooled = difference(runs, by=["objective"], pool=True)
    assert pooled["pairs"] == 3
    assert pooled["means"][0] - pooled["means"][1] == pytest.approx(pooled["mean"])


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


def rewritten(run, setting, value, negatives=62):
    """The run with another setting of its data, and another number of negatives."""
    header = json.loads((run / "config.json").read_text())
    header["config"]["data"][setting] = value
    (run / "config.json").write_text(json.dumps(header))
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(
        lines.replace('"negatives": 62.0', f'"negatives": {negatives}')
    )


def test_runs_on_different_data_sets_are_compared_by_tests_on_the_same_set_only(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("one", "other")]
    rewritten(runs[1], "data", "cifar10")
    made = compare_runs(runs)
    assert [one["measure"] for one in made.plain()] == ["linear on digits, test set"]
    assert made.apart.startswith("Runs on different data sets (digits: one; cifar10: other) are")
    assert made.apart in made.page().about
    results = (runs[1] / "results.json").read_text()
    (runs[1] / "results.json").write_text(results.replace('"digits"', '"cifar10"'))
    assert not compare_runs(runs).contrasts and "Runs on different" in page(runs)
    assert not compare_runs(crossed(tmp_path / "alike")).apart


def test_numbers_that_depend_on_k_are_not_called_higher_where_k_differs(tmp_path):
    runs = crossed(tmp_path)
    for run in runs:
        rewritten(run, "data", "digits", 126 if "-64-" in run.name else 62)
    found = {(one["measure"], *one["settings"]["group"]): one for one in differences_of(runs)}
    assert (
        found["Loss, on InfoNCE's scale", "batch_size"]["reading"] == "not comparable: K differs"
    )
    apart = found["K-sample MI", "batch_size"]
    assert apart["reading"] == "not comparable: K differs" and not apart["settled"]
    assert found["linear on digits, test set", "batch_size"]["reading"] == "higher"
    assert found["K-sample MI", "objective"]["reading"] in ("higher", "lower", "open")
    assert "not comparable: K differs" in page(runs)
    # Pooled, the pairs have the same K; a run of another batch without a partner is in no pair.
    paired_runs = [run for run in runs if not run.name.startswith("flatnce-64")]
    pooled = differences_of(paired_runs, by=["objective"], pool=True)
    assert {one["pairs"] for one in pooled} == {3}
    assert "not comparable: K differs" not in {one["reading"] for one in pooled}


def test_the_ess_is_comparable_across_batch_sizes_from_a_tenth_on(tmp_path):
    runs, readings = crossed(tmp_path), []
    for ess in (0.1, 0.099):  # of the larger batch; the smaller one has 0.4
        for run in runs:
            larger = "-64-" in run.name
            rewritten(run, "data", "digits", 126 if larger else 62)
            if larger:
                lines = (run / "metrics.jsonl").read_text()
                (run / "metrics.jsonl").write_text(re.sub('"ess": [^,]*', f'"ess": {ess}', lines))
        found = differences_of(runs)
        ess_of = {
            tuple(one["settings"]["group"]): one["reading"]
            for one in found
            if one["measure"] == "ESS of the negatives"
        }
        readings.append(ess_of["batch_size",])
        assert "not comparable" not in ess_of["objective",]  # within one K
    assert readings == ["same difference in all pairs", "not comparable: K differs"]


def test_numbers_are_in_order_and_compared_with_the_smallest_or_with_what_is_asked(tmp_path):
    runs = crossed(tmp_path, sizes=(128, 32, 64))
    found = [one for one in differences_of(runs, by=["batch_size"]) if "linear" in one["measure"]]
    assert [one["group"] for one in found] == ["batch size 64", "batch size 128"] * 2
    assert {one["against"] for one in found} == {"batch size 32"}
    assert difference(runs, by=["batch_size"], against="128")["against"] == "batch size 128"


def test_the_page_begins_with_a_forest_plot_of_the_linear_probe(tmp_path):
    made = compare_runs(crossed(tmp_path)).page()
    assert made.sections[0].heading == "linear on digits, test set (%)"
    assert made.lead.startswith("linear on digits, test set (%): settled, which means that")
    many = compare_runs(crossed(tmp_path / "many", seeds=(0,), sizes=(8, 16, 32))).page().lead
    assert many.count(" − ") == 4 and many.endswith("; and 3 more below.")
    forest = charts_of(made)[0]
    assert forest.name == "chart-forest-FlatNCE-InfoNCE"
    assert forest.data[0].y == pytest.approx([0.101, 0.1515]) and forest.data[0].spread[0] > 0
    assert charts_of(made)[1].name == "chart-forest-batch-size-64-32"
    assert "<svg" in forest.svg()
    few = charts_of(compare_runs(crossed(tmp_path / "few", seeds=(0, 1))).page())[0]
    assert few.data[0].spread == [None, None]


def test_titles_differ_and_the_values_have_one_order_everywhere(tmp_path):
    made = compare_runs(crossed(tmp_path)).page()
    headings = [section.heading for section in made.sections]
    titles = [figure.title for section in made.sections for figure in section.figures]
    assert len(set(headings)) == len(headings) and len(set(titles)) == len(titles)
    assert titles[0] == "FlatNCE − InfoNCE"
    assert made.sections[1].table.header[2:4] == ["FlatNCE", "InfoNCE"]
    assert not any("second" in row[0] for row in made.sections[1].table.rows)  # no speeds


def test_many_values_are_contrasted(tmp_path):
    made = compare_runs(crossed(tmp_path, seeds=(0,), sizes=range(2, 12)))
    assert sum("linear" in one["measure"] for one in made.plain()) == 10 + 2 * 9
    assert "20 runs, which differ in objective, batch size." in html_without_charts(made.page())


def test_runs_that_differ_in_the_seed_alone_are_not_compared(tmp_path):
    runs = [write_run(tmp_path / f"r{seed}", seed=seed, shift=0.1 * seed) for seed in range(3)]
    html = page(runs)
    assert "differ in nothing but the seed" in html and "There is nothing to compare" in html


def test_runs_of_ones_own_are_compared_by_their_own_settings(tmp_path):
    runs = []
    for seed, objective in itertools.product(range(3), ("infonce", "mine")):
        place, settings = (
            tmp_path / f"{objective}-{seed}",
            {"model": objective, "data": "mine", "seed": seed},
        )
        log = RunLog(place, kind="train", config=settings)
        gain = 0.1 * (objective == "mine") + 0.01 * seed
        log.log({"kind": "watch", "step": 5, "epoch": 1.0, "pool_mi": 2 + gain})
        log.finish({"step": 5})
        runs.append(log.directory)
    (found,) = differences_of(runs, by=["model"])
    assert (found["mean"], found["pairs"]) == (pytest.approx(0.1), 3)


def test_the_ess_of_an_older_run_is_the_papers_form(tmp_path):
    runs = write_pairs(tmp_path, [0.02, 0.03, 0.01])
    assert "ESS of the negatives" in {one["measure"] for one in differences_of(runs)}
    for run in runs[::2]:  # InfoNCE's
        lines = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(re.sub(r'"ess_paper": [^,]*, ', "", lines))
    found = {one["measure"]: one for one in differences_of(runs)}
    assert "ESS of the negatives" not in found
    assert found["ESS of the negatives, paper's form"]["mean"] == pytest.approx(0.05)


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
    assert found["settled"] and found["reading"] == "higher"


@pytest.mark.parametrize(
    "given, said",
    [
        ([0.02, 0.03, 0.01, 0.02], "higher"),
        ([-0.02, -0.021, -0.019], "lower"),
        ([0.04, -0.02, 0.01], "open"),
        ([0.02], "too few"),
        ([0.02, 0.03], "too few"),
        ([0.0, 0.0, 0.0], "identical in all pairs"),
        ([0.02, 0.02, 0.02], "same difference in all pairs"),
    ],
)
def test_the_page_says_what_is_settled_and_what_is_open(tmp_path, given, said):
    runs = write_pairs(tmp_path, given)
    found = difference(runs)
    assert f'data-name="reading">{said}</td>' in page(runs) and found["reading"] == said
    assert f"“{said}”" in page(runs)  # where the readings are explained
    assert ("settled, which means" in page(runs)) == (said in ("higher", "lower"))
    assert ("More seeds make the intervals" in page(runs)) == (said == "open")
    assert ("no difference has a 95 % interval" in page(runs)) == (found["interval"] is None)
    assert (found["interval"] is not None) == (said in ("higher", "lower", "open"))


def test_an_unfinished_run_is_not_counted(tmp_path):
    runs = write_pairs(tmp_path, [0.02, 0.03])
    runs.append(write_run(tmp_path / "going", "flatnce", 2, finished=False))
    assert difference(runs)["pairs"] == 2
    assert "Left out because they have not finished: going." in page(runs)
    assert "There is nothing to compare" in page([runs[0], runs[-1]])


def test_the_sign_of_an_end_next_to_zero_is_visible(tmp_path):
    settled = compare_runs(write_pairs(tmp_path, [0.02, 0.03, 0.01])).contrasts
    low = replace(settled[0], paired=Paired(3, -9.1e-5, 1e-5, (-1.8e-4, -3.2e-7)))
    assert low.paired.reading == "lower" and low.measure.unit == "share"
    assert low.interval == "−0.02 to −0.00003" and low.signed(9e-6) == "+0.0009"
    open_one = replace(low, paired=Paired(3, -9.1e-5, 1e-5, (-1.8e-4, 3.2e-7)))
    assert open_one.interval == "−0.02 to +0.00"


def test_the_table_names_the_setting_and_the_page_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/flatnce", "compare", "a", "b"])
    made = compare_runs(crossed(tmp_path), by=["batch_size"]).page()
    assert made.sections[1].table.header[2:4] == ["batch size 64", "batch size 32"]
    assert made.facts["Command"] == "flatnce compare a b"
