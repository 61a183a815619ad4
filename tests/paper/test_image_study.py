"""The image study: its page says what its records hold."""

import json
import re
from pathlib import Path

import pytest
from scipy.stats import t as student

STUDY = Path(__file__).parents[2] / "benchmarks" / "image_study"


@pytest.fixture
def study(study_modules):
    import records
    import table

    return records, table


def test_the_tables_of_the_page_are_those_of_the_records(study):
    _, table = study
    for path in table.pages():
        page = path.read_text(encoding="utf-8")
        assert table.filled(page, path) == page


def test_the_row_of_the_tuning_seed_is_of_the_records(study):
    records, table = study
    found = list(records.read_all(STUDY / "records").values())
    page = (STUDY.parents[1] / "docs" / "results.md").read_text(encoding="utf-8").replace(" %", "")
    for batch in table.BATCHES:
        runs = (table.fixed_temperatures(found, name, batch) for name in ("flatnce", "infonce"))
        flat, info = (f"{100 * table.best(each)['evaluation']['linear']:.1f}" for each in runs)
        assert f"batch {batch}: {flat} and {info}" in page


def test_the_words_on_targets_and_losses_are_of_the_records(study):
    from hypotheses import accuracies, difference

    records, table = study
    found = list(records.read_all(STUDY / "records").values())
    docs = STUDY.parents[1] / "docs"
    temperature, which = (
        (docs / name).read_text(encoding="utf-8") for name in ("temperature.md", "which-loss.md")
    )
    for objective, name in table.NAMES.items():
        runs = sorted(table.targets(found, objective), key=table.target_of)
        linear = [100 * one["evaluation"]["linear"] for one in runs]
        assert f"{listed(linear, '{:.1f}')} % with {name}" in temperature
    settled = [
        one["metrics"][-1]["temperature"]
        for one in found
        if one["piece"] == 5 and table.target_of(one) == 0.075
    ]
    assert f"settled at {min(settled):.3f} to {max(settled):.3f} at the batches" in temperature
    ess = (docs / "explain" / "effective-sample-size.md").read_text(encoding="utf-8")
    assert f"ended at temperatures of {min(settled):.3f} to {max(settled):.3f} at the" in ess
    tuned = difference(found, ("FlatNCE", 32), ("InfoNCE", 32))
    words = f"{tuned.mean:.2f} points (linear, {tuned.low:.2f} to {tuned.high:.2f})"
    assert words in which
    nearest = difference(found, ("FlatNCE", 32), ("InfoNCE", 32), "knn_20")
    assert f"and {nearest.mean:.2f} of kNN (k = 20)" in which
    tuned_runs = [one for one in found if one["piece"] == 5 and table.target_of(one) is None]
    ends = {
        (round(one["metrics"][-1]["gain"], 2), round(one["metrics"][-1]["mi"], 1))
        for one in tuned_runs
        if (table.objective_of(one), table.batch_of(one)) == ("infonce", 32)
    }
    assert ends == {(0.81, 2.4)} and "ends at a gain\n   of 0.81 and 2.4 of 4.1 nats" in which
    own = accuracies(found, "FlatNCE", 32).values()
    large, ours = (mean_at_128(found, arm) for arm in ("InfoNCE", "FlatNCE"))
    assert f"reaches {large} % (linear, five seeds)" in which
    assert f"at batch 32 ({sum(own) / len(own):.2f}, five seeds)" in which
    assert f"At 128 FlatNCE has {ours}, {at_128(found, 'FlatNCE', 'InfoNCE', '+')}" in which


def words_of(path):
    """The words of a page, wherever its lines break."""
    return " ".join((STUDY.parents[1] / path).read_text(encoding="utf-8").split())


def test_the_pages_give_the_tuning_runs_and_rates_of_the_records(study):
    from choices import rate_at
    from hypotheses import LEAST_MEAN

    records, table = study
    found = list(records.read_all(STUDY / "records").values())
    readme, results, which, changes = (
        words_of(path)
        for path in ("README.md", "docs/results.md", "docs/which-loss.md", "CHANGELOG.md")
    )
    flat, info = (rate_at(128, objective, found) for objective in ("flatnce", "infonce"))
    assert f"batch 128, {flat:g} for FlatNCE and {info:.4f} for InfoNCE, follow" in results
    assert f"the learning rates at 128, {flat:.2f} and {info:.2f}, follow" in readme
    assert f"misses the goal of {LEAST_MEAN}" in readme
    assert f"The goal of {LEAST_MEAN} for FlatNCE-ESS at batch 32 is missed" in results
    assert f"FlatNCE at batch 32 misses {LEAST_MEAN}" in changes
    fixed = {}
    for objective in ("flatnce", "infonce"):
        for batch in table.BATCHES:
            for run in table.fixed_temperatures(found, objective, batch):
                fixed[objective, batch, run["config"]["loss"]["temperature"]] = run["evaluation"]

    def best(objective, batch):
        own = [one["linear"] for key, one in fixed.items() if key[:2] == (objective, batch)]
        return 100 * max(own)

    below = max(best("infonce", batch) for batch in table.BATCHES) - best("flatnce", 32)
    assert f"FlatNCE at batch 32 is {below:.1f} below InfoNCE at its best batch" in results
    nearer = 100 * (fixed["infonce", 32, 0.2]["knn_20"] - fixed["infonce", 32, 0.3]["knn_20"])
    assert f"by kNN InfoNCE is better at 0.2, by {nearer:.2f} points" in which
    tuned = [best(objective, 256) for objective in ("flatnce", "infonce")]
    assert "temperatures reach {:.1f} and {:.1f}.".format(*tuned) in changes
    held = [
        100 * table.best(table.targets(found, objective))["evaluation"]["linear"]
        for objective in ("flatnce", "infonce")
    ]
    assert "for FlatNCE ({:.1f}) and 0.3 for InfoNCE ({:.1f})".format(*held) in changes


def test_every_mention_of_the_main_comparison_is_of_the_records(study):
    from hypotheses import difference

    found = list(study[0].read_all(STUDY / "records").values())
    tuned = difference(found, ("FlatNCE", 32), ("InfoNCE", 32))
    held = difference(found, ("FlatNCE-ESS", 32), ("InfoNCE-ESS", 32))
    level = difference(found, ("FlatNCE-ESS", 32), ("FlatNCE", 32))
    temperature, which, results = (
        words_of(f"docs/{name}.md") for name in ("temperature", "which-loss", "results")
    )
    changes = words_of("CHANGELOG.md")
    mean, interval = f"{tuned.mean:.2f}", f"{tuned.low:.2f} to {tuned.high:.2f}"
    assert f"FlatNCE is better by {mean} points at batch 32" in temperature
    assert f"(linear, 100 epochs, five seeds, {interval};" in temperature
    assert f"at its tuned temperature 0.1 is better by {mean} points" in which
    targets = f"by {held.mean:.2f} ({held.low:.2f} to {held.high:.2f})"
    assert f"by {mean} points ({interval}) at tuned temperatures and {targets} at ESS" in changes
    assert f"by {mean} ({interval}), and with ESS targets instead of temp" in results
    ends = f"({level.low:.2f} to {level.high:.2f})".replace("-", "−")
    assert f"+{level.mean:.2f} points {ends}, and at batch 128" in temperature
    assert f"was found**: +{level.mean:.2f} {ends} for FlatNCE at batch 32" in results
    assert f"ahead by {at_128(found, 'FlatNCE', 'InfoNCE')[:-1]}; not a" in changes


def mean_at_128(found, arm):
    """The mean linear accuracy of an arm at batch 128, whose seeds the pages name."""
    from hypotheses import accuracies

    values = accuracies(found, arm, 128).values()
    assert len(values) == 5, "the pages name five seeds at batch 128"
    return f"{sum(values) / len(values):.2f}"


def at_128(found, ours, theirs, sign=""):
    """A difference at batch 128, as the pages print it: mean and interval."""
    from hypotheses import difference

    one = difference(found, (ours, 128), (theirs, 128))
    return f"{one.mean:{sign}.2f} ({one.low:.2f} to {one.high:.2f})".replace("-", "−")


def within_five(found, ours, theirs):
    """The interval of a difference at batch 128, corrected for five comparisons."""
    from hypotheses import difference

    one = difference(found, (ours, 128), (theirs, 128))
    wider = student.ppf(1 - 0.025 / 5, 4) / student.ppf(0.975, 4)
    ends = (one.mean + wider * (end - one.mean) for end in (one.low, one.high))
    return " to ".join(f"{end:.2f}" for end in ends).replace("-", "−")


def test_the_differences_at_batch_128_are_those_of_the_records(study):
    from hypotheses import accuracies, difference

    found = list(study[0].read_all(STUDY / "records").values())
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    pairs = [("FlatNCE", "InfoNCE"), ("FlatNCE-ESS", "InfoNCE"), ("FlatNCE-ESS", "InfoNCE-ESS")]
    pairs += [("FlatNCE-ESS", "FlatNCE"), ("InfoNCE-ESS", "InfoNCE")]
    for ours, theirs in pairs:
        own, other = (accuracies(found, arm, 128) for arm in (ours, theirs))
        each = listed([own[seed] - other[seed] for seed in sorted(own)], "{:.2f}")
        assert f"- {ours} minus {theirs}: {each}, mean {at_128(found, ours, theirs)}" in page
    results, temperature = (
        " ".join((STUDY.parents[1] / "docs" / name).read_text(encoding="utf-8").split())
        for name in ("results.md", "temperature.md")
    )
    above = at_128(found, "FlatNCE", "InfoNCE").replace(" (", " above InfoNCE (")
    with_target = at_128(found, "FlatNCE-ESS", "InfoNCE")
    assert f"held-out images): {above}, and {with_target} with the ESS target" in results
    corrected = [within_five(found, *pair) for pair in pairs]
    assert f"both intervals include 0 ({corrected[0]} and {corrected[1]})" in results
    assert f"only the third interval excludes 0 ({corrected[2]})" in page
    assert [one.startswith("−") for one in corrected] == [True, True, False, True, True]
    assert f"({mean_at_128(found, 'InfoNCE')}, five seeds)" in results
    level = at_128(found, "FlatNCE-ESS", "FlatNCE")
    named = level.replace(" (", " above FlatNCE's tuned temperature (")
    assert f"At batch 128 it is {named}" in results
    assert f"and at batch 128 +{level}" in temperature
    one = difference(found, ("InfoNCE", 128), ("InfoNCE-ESS", 128))
    below = f"({one.low:.2f} to {one.high:.2f}".replace("-", "−")
    assert f"{one.mean:.2f} below InfoNCE's tuned temperature there {below})" in results
    assert f"{one.mean:.2f} points below its tuned temperature at batch 128 {below}" in temperature
    nearest = difference(found, ("InfoNCE", 128), ("InfoNCE-ESS", 128), "knn_20")
    assert f"in all five seeds, by {nearest.mean:.2f} on average" in page
    small = difference(found, ("FlatNCE-ESS", 32), ("InfoNCE", 128))
    interval = f"({small.low:.2f} to {small.high:.2f})".replace("-", "−")
    assert f"batch 32 is {-small.mean:.2f} below it {interval}" in results
    assert f"mean {small.mean:.2f} {interval}".replace("-", "−") in page


@pytest.mark.slow
def test_the_table_of_small_batches_is_what_the_script_prints(study):
    from small_batches import table

    page = STUDY.parents[1] / "docs" / "explain" / "effective-sample-size.md"
    text = page.read_text(encoding="utf-8")

    def numbers(rows):
        pairs = [pair for row in rows for pair in re.findall(r"(0\.\d+) \((0\.\d+)\)", row)]
        return [float(number) for pair in pairs for number in pair]

    printed = table().splitlines()
    begin = text.index(printed[0])
    shown = text[begin:].splitlines()[: len(printed)]
    assert numbers(shown) == pytest.approx(numbers(printed), abs=0.002)
    assert len(numbers(shown)) == 6 * 3 * 2


def test_presets_are_what_the_study_chose_for_flatnce(study):
    from choices import rate_at

    from flatnce.pretrain import preset

    records, table = study
    found = list(records.read_all(STUDY / "records").values())
    optimizer = preset("cifar10").optimizer
    assert optimizer.scaling == "linear"
    for batch in (32, 512):
        assert optimizer.rate * batch / optimizer.base_batch == rate_at(batch, "flatnce", found)
    small = preset("small-batch")
    assert small.run.batch_size == 32
    assert small.loss.ess == table.target_of(table.best(table.targets(found, "flatnce")))
    assert small.optimizer == optimizer


def test_the_row_of_the_readme_gives_what_speaks_against_it(study):
    from hypotheses import difference

    found = list(study[0].read_all(STUDY / "records").values())
    readme = (STUDY.parents[1] / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in readme.splitlines() if "**batch 128**" in line]
    flat, info = (mean_at_128(found, arm) for arm in ("FlatNCE", "InfoNCE"))
    between = at_128(found, "FlatNCE", "InfoNCE", "+")
    assert f"FlatNCE {flat} %, InfoNCE {info}, {between}, which is not a hypothesis" in row
    assert "the best of four batch sizes for InfoNCE (one seed)" in row
    small = difference(found, ("FlatNCE-ESS", 32), ("InfoNCE", 128))
    words = f"{small.mean:.2f} ({small.low:.2f} to {small.high:.2f})".replace("-", "−")
    assert f"is not shown to exceed InfoNCE at batch 128**: with the ESS target {words}" in row


def test_every_record_carries_the_key_of_its_config(study):
    records, _ = study
    found = records.read_all(STUDY / "records")
    assert found
    for name, one in found.items():
        assert one["key"] == records.key_of(one["config"]), name
    assert len({one["key"] for one in found.values()}) == len(found)


def in_piece(record, piece, step):
    """Whether a choice was made among runs that include this one."""
    if step == "rate":  # an addition to the screen of piece 2
        return record["piece"] == 2 or record["piece_step"] == step
    return record["piece"] == piece and step in (None, record["piece_step"])


@pytest.mark.parametrize(
    ("piece", "step", "number"),
    [
        (1, None, 7),
        (2, None, 8),
        (3, "rate", 9),
        (3, "512", 2),
        (3, "256", 2),
        (3, "128", 2),
        (3, "32", 2),
        (4, None, 5),
    ],
)
def test_the_choice_follows_the_rule_of_the_protocol(study, piece, step, number):
    records, _ = study
    choices = json.loads((STUDY / "choice.json").read_text(encoding="utf-8"))
    (choice,) = [one for one in choices if (one["piece"], one.get("step")) == (piece, step)]
    found = records.read_all(STUDY / "records").values()
    for objective in ("infonce", "flatnce"):
        own = [one for one in found if one["config"]["loss"]["objective"] == objective]
        own = [one for one in own if in_piece(one, piece, step)]
        assert len(own) == number
        best = max(own, key=lambda one: one["evaluation"]["linear"])
        assert choice[objective] == best["name"]


def test_the_rates_of_long_runs_follow_from_the_two_screens(study):
    from choices import OBJECTIVES, batch_of, objective_of, rate_at, rate_of

    records = list(study[0].read_all(STUDY / "records").values())
    long = [one for one in records if one["results"]["epochs"] != 20]
    long = [one for one in long if objective_of(one) in OBJECTIVES]  # DHEL has its own screen
    assert long
    for one in long:
        assert rate_of(one) == rate_at(batch_of(one), objective_of(one), records), one["name"]


def test_no_tuning_run_was_evaluated_on_test_images(study):
    for name, one in study[0].read_all(STUDY / "records").items():
        if one["seed"] == 0:
            assert one["purpose"] == "tuning", name
            assert one["evaluation"]["on"] == "held-out training images", name


def made_record(objective, target, batch, seed, linear):
    """A record of piece 5 with what a decision reads."""
    return {
        "piece": 5,
        "piece_step": f"{batch}-{seed}",
        "seed": seed,
        "config": {
            "loss": {"objective": objective, "ess": target},
            "run": {"batch_size": batch},
        },
        "evaluation": {"linear": linear / 100, "knn_20": 0.8},
    }


def made_records(study, shifts, seeds=(10, 11, 12, 13, 14)):
    """Piece 5 with the accuracies 86 + shift + noise that differs between arms."""
    noise = [0.1, -0.1, 0.2, -0.2, 0.0]
    found = study[0].read_all(STUDY / "records").values()
    found = [one for one in found if one["piece_step"] in ("256", "512")]  # piece 3 chose 256
    for (objective, target, batch), shift in shifts.items():
        sign = 1 if objective == "flatnce" and target else -1
        for seed in seeds:
            linear = 86 + shift + sign * noise[seed - 10]
            found.append(made_record(objective, target, batch, seed, linear))
    return found


LEVEL = {
    (objective, target, batch): 0.0
    for objective in ("infonce", "flatnce")
    for target in (None, 0.3)
    for batch in (32, 256)
}


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, {"H1": "supported", "H2": "undecided", "H4": "supported", "H5": "undecided"}),
        ({("flatnce", None, 32): 1.0}, {"H2": "supported", "H4": "refuted"}),
        ({("flatnce", None, 256): 0.5}, {"H2": "undecided", "H4": "undecided"}),
        ({("infonce", 0.3, 32): -1.0}, {"H1": "supported", "H5": "supported"}),
        ({("infonce", None, 256): 2.0}, {"H1": "refuted"}),
        ({("flatnce", 0.3, 32): -0.45}, {"H1": "refuted"}),  # its mean is not above 85.6
    ],
)
def test_hypotheses_are_decided_by_the_criteria_of_the_protocol(study, changes, verdicts):
    import hypotheses

    found = hypotheses.decided(made_records(study, LEVEL | changes))
    whole = {name: hypotheses.together([v for _, v in pairs]) for name, pairs in found.items()}
    assert whole | verdicts == whole


def test_an_interval_is_students_t_over_pairs_of_seeds(study):
    import hypotheses
    from scipy.stats import ttest_rel

    records = made_records(study, LEVEL)
    arms = ("FlatNCE-ESS", 32), ("InfoNCE", 256)
    found = hypotheses.difference(records, *arms)
    first, second = (list(hypotheses.accuracies(records, *arm).values()) for arm in arms)
    low, high = ttest_rel(first, second).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))


def test_no_hypothesis_is_decided_before_all_seeds_have_been_run(study):
    import hypotheses

    for pairs in hypotheses.decided(made_records(study, LEVEL, seeds=(10, 11))).values():
        assert {verdict for _, verdict in pairs} == {"not all seeds"}


def listed(values, form, minus="−"):
    *first, last = (form.format(value).replace("-", minus) for value in values)
    return f"{', '.join(first)} and {last}"


def test_the_words_on_the_main_comparison_are_of_the_records(study):
    from hypotheses import accuracies

    found = list(study[0].read_all(STUDY / "records").values())
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    arms = ("InfoNCE", "FlatNCE", "FlatNCE-ESS", "InfoNCE-ESS")
    linear = {arm: accuracies(found, arm, 32) for arm in arms}
    seeds = sorted(linear["InfoNCE"])
    for first, second in (("FlatNCE", "InfoNCE"), ("FlatNCE-ESS", "InfoNCE-ESS")):
        apart = [linear[first][seed] - linear[second][seed] for seed in seeds]
        assert f"{listed(apart, '{:.2f}')}, mean {sum(apart) / len(apart):.2f}." in page
    own = linear["FlatNCE-ESS"].values()
    reached = f"{listed(own, '{:.2f}')} at batch 32, mean {sum(own) / len(own):.2f}, below"
    assert f"FlatNCE-ESS has {reached}" in page


def test_the_words_on_the_temperature_curve_are_of_the_records(study):
    from hypotheses import of_curve, runs_of_curve, spread

    found = list(study[0].read_all(STUDY / "records").values())
    root = STUDY.parents[1]
    pages = [STUDY / "README.md", root / "docs" / "results.md", root / "README.md"]
    texts = [" ".join(page.read_text(encoding="utf-8").split()) for page in pages]
    info, flat = (of_curve(found, objective) for objective in ("infonce", "flatnce"))

    def apart(one, other):
        return listed([one[seed] - other[seed] for seed in (10, 11)], "{:.2f}")

    below = apart(flat[0.1], flat[0.05])
    ahead, behind = apart(flat[0.05], info[0.05]), apart(info[0.5], flat[0.5])
    for name in ("temperature.md", "which-loss.md"):
        text = (root / "docs" / name).read_text(encoding="utf-8")
        assert behind in text, name
    own = words_of("docs/temperature.md")
    assert f"at temperature 0.05 FlatNCE is above InfoNCE by {ahead} points" in own
    (gain,) = {
        round(one["metrics"][-1]["gain"], 2)
        for objective in ("infonce", "flatnce")
        for one in runs_of_curve(found, objective)
        if one["config"]["loss"]["temperature"] == 0.5
    }
    assert f"temperature 0.5 (gain {gain:.2f}) InfoNCE is better" in words_of("docs/which-loss.md")
    changes = words_of("CHANGELOG.md")
    assert f"above InfoNCE by {ahead} points, at 0.5 InfoNCE is" in changes
    assert f"at 0.5 InfoNCE is above FlatNCE by {behind}" in changes
    page = texts[0]
    for text in texts:
        assert f"above InfoNCE by {ahead}" in text
        assert f"**InfoNCE is above FlatNCE** by {behind}" in text
        assert f"{below} below" in text
    assert f"{apart(info[0.3], info[0.05])} below InfoNCE at its tuned temperature" in page
    high = apart(flat[0.1], flat[0.5]), apart(info[0.3], info[0.5])
    assert f"FlatNCE is {high[0]} below its tuned temperature, InfoNCE {high[1]}." in page
    each = [run[tuned][seed] - run[0.5][seed] for run, tuned in ((flat, 0.1), (info, 0.3))
            for seed in (10, 11)]  # fmt: skip
    assert f"both are {min(each):.0f} to {max(each):.1f} points below their" in texts[1]
    run = [{at: seeds for at, seeds in curve.items() if seeds} for curve in (flat, info)]
    a, b = (spread(curve, (10, 11)) for curve in run)
    assert f"is {a:.2f} for FlatNCE and {b:.2f} for InfoNCE, a ratio of {a / b:.2f}." in page


def test_every_page_names_the_differences_and_intervals_of_the_records(study):
    from hypotheses import accuracies, difference

    found = list(study[0].read_all(STUDY / "records").values())
    root = STUDY.parents[1]
    pages = [STUDY / "README.md", root / "README.md", root / "docs" / "results.md"]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    means = {}
    for first, second in (("FlatNCE", "InfoNCE"), ("FlatNCE-ESS", "InfoNCE-ESS")):
        one = difference(found, (first, 32), (second, 32))
        words = f"{one.mean:.2f} ({one.low:.2f} to {one.high:.2f}"
        named = f"{one.mean:.2f} (95 % interval over seeds {one.low:.2f} to {one.high:.2f}"
        means |= {arm: sum((of := accuracies(found, arm, 32)).values()) / len(of)
                  for arm in (first, second)}  # fmt: skip
        for text in texts:
            assert words in text.replace(" points", "") or named in text
    level = difference(found, ("FlatNCE-ESS", 32), ("FlatNCE", 32))
    words = f"+{level.mean:.2f}, −{-level.low:.2f} to {level.high:.2f}"
    for text in texts:
        assert words in text.replace("\n(", ", ").replace(" (", ", ")
    for arm, mean in means.items():
        assert f"{mean:.2f}" in texts[1], arm
        assert f"{mean:.2f}" in texts[2], arm
