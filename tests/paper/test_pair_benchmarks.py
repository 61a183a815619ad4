"""The pages on two towers and sentence pairs print what their committed results hold."""

import json
import math
import statistics
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from scipy.stats import t as student

ROOT = Path(__file__).parents[2]


def benchmark(name):
    """The script and the results of a benchmark."""
    folder = ROOT / "benchmarks" / name
    spec = spec_from_file_location(f"{name}_run", folder / "run.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script, json.loads((folder / "results.json").read_text(encoding="utf-8"))


def page(path):
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def scores(script, results, name, start=None):
    """The test scores of a row of the table, in the order of the seeds."""
    runs = [run for run in results["runs"] if run.get("start") == start]
    rows = [run for run in runs if script.name_of(run) == name]
    assert [run["seed"] for run in rows] == list(range(len(rows)))
    tests = [run["test"] for run in rows]
    return [test["mean"] if isinstance(test, dict) else test for test in tests]


def spread(values):
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def paired(ours, theirs):
    """The mean difference within a seed, and the ends of Student's 95 % interval."""
    apart = [own - other for own, other in zip(ours, theirs, strict=True)]
    mean, n = statistics.fmean(apart), len(apart)
    half = student.ppf(0.975, n - 1) * statistics.stdev(apart) / math.sqrt(n)
    return mean, mean - half, mean + half


def test_the_best_scales_of_flatnce_have_a_small_ess():
    best = {"two_towers": "FlatClipLoss, learned", "sentence_pairs": "flatnce, scale 80 (best)"}
    found = []
    for name, row in best.items():
        script, results = benchmark(name)
        runs = [run for run in results["runs"] if script.name_of(run) == row]
        found += [run["ess"] for run in runs if run.get("ess") is not None]
    assert len(found) >= 8 and max(found) < 0.01
    assert "where FlatNCE's best scales have an ESS below 0.01" in page("docs/temperature.md")


@pytest.mark.parametrize("name", ["two_towers", "sentence_pairs"])
def test_the_tables_are_those_of_the_results(name):
    script, results = benchmark(name)
    text = (ROOT / "benchmarks" / name / "README.md").read_text(encoding="utf-8")
    block = text.split("<!-- results: begin -->\n")[1].split("\n<!-- results: end -->")[0]
    assert block == script.table(results).strip()


def test_the_pages_give_the_scores_of_two_towers():
    script, results = benchmark("two_towers")
    ours = scores(script, results, "FlatClipLoss, learned")
    fixed = scores(script, results, "ClipLoss, fixed, scale 10 (best)")
    learned = statistics.fmean(scores(script, results, "ClipLoss, learned"))
    target = statistics.fmean(
        scores(script, results, "FlatNCE-ESS, target 0.075 (best, of images)")
    )
    info = statistics.fmean(scores(script, results, "InfoNCE-ESS, target 0.3 (of images)"))
    assert len(ours) == len(fixed) == 5
    mean, low, high = paired(ours, fixed)
    readme, found = page("README.md"), page("docs/results.md")
    for text in (readme, found):
        assert f"{spread(ours)} %" in text and f"{spread(fixed)} at its best fixed scale" in text
        assert f"{mean:+.2f} (" in text and f"{low:.2f} to {high:.2f}, five seeds" in text
        assert f"{learned:.1f}" in text
    assert f"does not carry over**: {target:.1f} |" in readme
    assert f"FlatNCE-ESS {target:.1f}, InfoNCE-ESS {info:.1f} |" in found
    own = page("benchmarks/two_towers/README.md")
    ess = scores(script, results, "FlatNCE-ESS, target 0.075 (best, of images)")
    assert f"{-paired(ess, ours)[0]:.2f} points less than `FlatClipLoss` with a learned" in own
    _, low, high = paired(ess, ours)
    assert f"({-high:.2f} to {-low:.2f}), {-paired(ess, fixed)[0]:.2f} less than `ClipLoss`" in own
    above, low, high = paired(ess, scores(script, results, "ClipLoss, learned"))
    assert (
        f"{above:.2f} more than `ClipLoss` with a learned scale ({low:.2f} to {high:.2f})" in own
    )
    temperature = page("docs/temperature.md")
    assert (
        f"recall {target:.1f} % with the target 0.075, {statistics.fmean(ours):.1f} %"
        in temperature
    )
    assert f"by {mean:.2f} points of recall" in page("docs/which-loss.md")
    _, low, high = paired(ours, fixed)
    changes = page("CHANGELOG.md")
    assert f"by {mean:.2f} points of recall ({low:.2f} to {high:.2f}, five seeds)" in changes


def test_the_pages_give_the_scores_of_sentence_pairs():
    script, results = benchmark("sentence_pairs")
    new, published = "re-initialised", "as it is"
    ours = scores(script, results, "flatnce, scale 80 (best)", new)
    library = scores(script, results, "library, scale 20 (best, default)", new)
    trained = scores(script, results, "library, scale 20 (best, default)", published)
    worse = statistics.fmean(scores(script, results, "flatnce, scale 80 (best)", published))
    ess = scores(script, results, "flatnce-ess, target 0.075 (best, of images)", new)
    info = scores(script, results, "infonce-ess, target 0.3 (of images)", new)
    assert len(ours) == len(library) == len(ess) == len(info) == 5
    readme, found = page("README.md"), page("docs/results.md")
    for text in (readme, found):
        assert f"from new weights {spread(ours)} against {spread(library)}" in text
        assert f"{worse:.1f} against {spread(trained)}" in text
    target, other = statistics.fmean(ess), statistics.fmean(info)
    assert f"with the ESS target of images {target:.1f} from new weights" in readme
    assert f"FlatNCE-ESS {target:.1f}, InfoNCE-ESS {other:.1f} from new weights" in found
    assert f"({target:.1f} against {statistics.fmean(ours):.1f} at a fixed scale)" in page(
        "docs/temperature.md"
    )
    before = statistics.fmean(scores(script, results, "no training", published))
    untrained = statistics.fmean(scores(script, results, "no training", new))
    small = statistics.fmean(scores(script, results, "flatnce, scale 20 (default)", new))
    best = f"{statistics.fmean(trained):.1f}"
    assert f"loses {statistics.fmean(trained) - worse:.1f} points" in readme
    assert f"best rate and scale; {untrained:.1f} without training)" in found
    assert f"({before:.1f} without training)" in found
    assert f"no clear difference ({small - statistics.fmean(library):+.1f})" in found
    validation = {
        (run["family"], run["value"], run["rate"]): run["validation"]
        for run in results["tuning"]
        if run["start"] == published
    }
    (start,) = {
        round(run["validation"], 1)
        for run in results["runs"]
        if run["start"] == published and script.name_of(run) == "no training"
    }
    harmed = validation["flatnce", 20.0, 0.0001]
    which = page("docs/which-loss.md")
    assert f"(validation {harmed:.1f}, before training {start})" in which
    gains = [run["gain"] for run in results["tuning"] if run["start"] == published
             and run["family"] in ("library", "flatnce") and run["value"] == 20]  # fmt: skip
    assert max(gains) < 0.01 and "at a gain below 0.01 at every learning rate" in which
    assert f"improves it from {before:.1f} to {best} on held-out STS" in which
    assert f"chosen on validation data, reaches {worse:.1f}." in which
    assert (
        f"is better: {statistics.fmean(ours):.1f} against {statistics.fmean(library):.1f} (["
        in which
    )


def test_the_page_on_sentence_pairs_gives_the_differences_of_the_ess_targets():
    script, results = benchmark("sentence_pairs")
    own = page("benchmarks/sentence_pairs/README.md")

    def below(first, second, start):
        mean, low, high = paired(*(scores(script, results, one, start) for one in (second, first)))
        return f"{mean:.2f}", f"({low:.2f} to {high:.2f})".replace("-", "−")

    new, published = "re-initialised", "as it is"
    library, best = "library, scale 20 (best, default)", "flatnce, scale 80 (best)"
    ours = "flatnce-ess, target 0.075 (best, of images)"
    info = "infonce-ess, target 0.3 (of images)"
    apart, interval = below(ours, best, new)
    assert f"{apart} points below FlatNCE at scale 80 {interval}" in own
    apart, interval = below(ours, library, new)
    assert f"and {apart} below the library {interval}" in own
    apart, interval = below(info, library, new)
    assert f"{apart} below the library {interval}" in own
    (first, one), (second, two) = (below(name, library, published) for name in (ours, info))
    assert f"in every seed, by {first} {one} and {second} {two}" in own
    small = "infonce-ess, target 0.075 (best)"
    signed = []
    for start in (new, published):
        apart, interval = below(library, small, start)
        signed.append(f"{float(apart):+.2f} {interval}".replace("-", "−"))
    said = f"{signed[0]} from new weights and {signed[1]} from the published ones"
    assert f"not shown to differ from the library: {said}" in own
