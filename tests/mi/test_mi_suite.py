"""The laws of benchmarks/mi_suite have the truths that they state, and its scores are right."""

import argparse
import importlib.util
import json
import math
import re
import sys
import types
from collections import Counter

import numpy as np
import pytest

from paths import ROOT

SUITE = ROOT / "benchmarks" / "mi_suite"


def _module(name):
    spec = importlib.util.spec_from_file_location(name, SUITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def score():
    names = ("laws", "held_out", "methods", "score")
    before = {name: sys.modules.get(name) for name in names}
    yield [_module(name) for name in names][-1]
    for name, module in before.items():
        sys.modules.pop(name)
        if module is not None:
            sys.modules[name] = module


def test_every_truth_is_the_mean_log_density_ratio_of_drawn_rows(score):
    assert len(score.LAWS) >= 30 and len(score.FAMILIES) >= 8
    assert 12 <= len(score.HELD_OUT) <= 16 and not score.LAWS.keys() & score.HELD_OUT.keys()
    for law in score.ALL_LAWS.values():
        n = 1000 if law.family == "small images" else 5000
        x, y, ratio = law.draw(n, np.random.default_rng(12))
        assert len(x) == len(y) == len(ratio) == n
        assert np.isfinite(x).all() and np.isfinite(y).all(), law.name
        error = ratio.std() / n**0.5
        assert abs(ratio.mean() - law.truth) < 4 * error + 1e-9, law.name


def test_scanned_digits_of_two_classes_cannot_be_confused_by_the_pixel_noise(score):
    pools = sys.modules["laws"]._digit_pools()
    nearest = math.inf
    for number, pool in enumerate(pools):
        others = np.concatenate([other for k, other in enumerate(pools) if k != number])
        squares = (pool**2).sum(1)[:, None] - 2 * pool @ others.T + (others**2).sum(1)
        nearest = min(nearest, float(squares.min()) ** 0.5)
    # Half of the distance is this many standard deviations of the noise (0.5) away.
    deviations = nearest / 2 / 0.5
    assert 1797 * math.erfc(deviations / 2**0.5) < 1e-12


def test_tables_depend_on_law_rows_and_seed_only(score):
    law = score.LAWS["few-normal"]
    draws = [law.sample(5, score.generator_of("few-normal", 5, seed))[0] for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0], draws[2])
    kinds = score.LAWS["labels-rings"].sample(5, score.generator_of("a", 5, 0))[2]
    assert kinds == (("number", "number"), ("category",))
    x, _, kinds = score.HELD_OUT["mixed-two-slopes"].sample(5, score.generator_of("a", 5, 0))
    assert x.shape == (5, 3) and kinds == (("category", "number", "count"), ("number",))


def test_gratings_of_two_directions_cannot_be_confused_by_the_pixel_noise(score):
    waves = sys.modules["held_out"]._GRATINGS
    row, column = np.divmod(np.arange(64), 8)
    phase = 2 * math.pi / 8 * (waves @ np.stack((row, column)))
    planes = np.concatenate((np.cos(phase), np.sin(phase)))
    assert np.allclose(planes @ planes.T, 32 * np.eye(12), atol=1e-9)
    # A grating has length 1.5 · √32 in its plane. To be confused, the noise in two planes must be
    # together as long as half the distance to the nearest grating of another plane.
    deviations = 1.5 * math.sqrt(2 * 32) / 2 / 0.5
    assert math.exp(-(deviations**2) / 2) * (1 + deviations**2 / 2) < 1e-12


def test_held_out_laws_are_run_and_shown_only_on_request(score, tmp_path, monkeypatch, capsys):
    own = _records("few-triangle", "cca", [0.25]) | _records("few-noisy-ring", "cca", [0.25])
    out = tmp_path / "scores.jsonl"
    out.write_text("".join(json.dumps(record) + "\n" for record in own.values()))
    for option, shown, hidden in (
        ([], "few-triangle", "few-noisy-ring"),
        (["--held-out"], "few-noisy-ring", "few-triangle"),
    ):
        monkeypatch.setattr(sys, "argv", ["score.py", "table", str(out), *option])
        score.main()
        text = capsys.readouterr().out
        assert f"| {shown} |" in text and hidden not in text


def _records(law, method, values, n=200, **more):
    return {
        (law, n, seed, method): {
            **{"law": law, "n": n, "seed": seed, "method": method, "value": value},
            **{"seconds": 1.0, **more},
        }
        for seed, value in enumerate(values)
    }


def test_errors_are_root_mean_squares_and_what_is_not_finite_counts_as_zero(score):
    records = _records("few-triangle", "a", [0.6, None, math.inf])
    found = score.errors(records)["few-triangle", "a"][200]
    assert found == pytest.approx(math.sqrt((0.01 + 0.25 + 0.25) / 3))
    left_out = _records("few-triangle", "b", [None], applies=False)
    assert ("few-triangle", "b") not in score.errors(left_out)


def test_the_table_marks_the_best_within_a_tenth_and_never_the_limit(score, capsys):
    records = _records("few-triangle", "a", [0.6], lower=0.5, low=0.55, high=0.7)
    records |= _records("few-triangle", "b", [0.609]) | _records("few-triangle", "c", [0.62])
    score.print_errors(score.with_limit(records))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| few-triangle | 0.500 | **0.100** | 0.000 | **0.109** | 0.120 |"
    assert lines[3] == "| best or within 10 % | 1 distributions | 1 | 0 | 1 | 0 |"
    score.print_coverage(records)
    text = capsys.readouterr().out
    assert "limit above the truth   0.0%" in text and "interval holds it   0.0%" in text


def test_pairs_are_compared_on_the_tables_that_both_were_given(score, capsys):
    records = _records("few-triangle", "flatnce", [0.6, 0.9]) | _records(
        "few-triangle", "a", [0.4]
    )
    records |= _records("few-cauchy", "flatnce", [0.7]) | _records("few-cauchy", "a", [1.0])
    records |= _records("few-parity-3", "a", [0.4])  # not run by ours
    score.print_pairs(records)
    truth = score.LAWS["few-cauchy"].truth
    theirs, ours = (0.1 + 1 - truth) / 2, (0.1 + 0.7 - truth) / 2
    row = f"| a | 2 | 2 | {theirs:.3f} | {ours:.3f} | 1 | 1 | 0 |"
    assert capsys.readouterr().out.splitlines()[-1] == row


def test_the_page_of_the_suite_prints_what_the_records_hold(score, capsys):
    page = (SUITE / "README.md").read_text(encoding="utf-8")
    records = score.read([SUITE / "scores_20.jsonl", SUITE / "peers.jsonl"])
    everything = score.with_limit(records)
    score.print_pairs(everything)
    for line in capsys.readouterr().out.split("\n"):
        assert line in page
    score.print_errors(everything)
    methods, *_, counts = capsys.readouterr().out.splitlines()
    best = dict(zip(methods.split(" | ")[2:], counts.split(" | ")[2:], strict=True))["flatnce"]
    assert f"is best or within 10 % on {best} of 43 distributions" in page
    score.print_least_favourable(everything)
    least = capsys.readouterr().out.split(": ")[1].split(" distributions")[0]
    assert f"It stays {least} when" in page
    fits = len((SUITE / "peers.jsonl").read_text().split("\n")) - 1
    assert f"`peers.jsonl` holds {fits:,} fits" in page


def words_of(path):
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def percent(part, whole):
    return f"{100 * part / whole:.0f} %"


def share(records, law_of, n=None, family=None):
    """Of how many tables the two-sided interval holds the truth, and of how many there is one."""
    held = [
        record["low"] - 1e-9 <= law_of[record["law"]].truth <= record["high"] + 1e-9
        for record in records
        if record.get("low") is not None
        and n in (None, record["n"])
        and family in (None, law_of[record["law"]].family)
    ]
    return sum(held), len(held)


def test_the_pages_give_the_score_of_the_distributions_that_were_held_back(score, capsys):
    records = score.read([SUITE / "held_out.jsonl"])
    score.print_errors(score.with_limit(records))
    methods, *_, counts = capsys.readouterr().out.splitlines()
    best = dict(zip(methods.strip("| ").split(" | ")[2:], counts.strip("| ").split(" | ")[2:],
                    strict=True))  # fmt: skip
    laws = len(score.HELD_OUT)
    score.print_pairs(score.with_limit(records))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| ksg |"))
    nearer = row.strip("| ").split(" | ")[-1]
    own = [record for record in records.values() if record["method"] == "flatnce"]
    above = sum(record["lower"] > score.ALL_LAWS[record["law"]].truth + 1e-9 for record in own)
    held, tables = share(own, score.ALL_LAWS)
    many, small = (
        percent(*share(own, score.ALL_LAWS, family=family))
        for family in ("many columns", "small images")
    )
    whole = percent(held, tables)
    readme, results, page, changes = (
        words_of(path)
        for path in ("README.md", "docs/results.md", "docs/mutual-information.md", "CHANGELOG.md")
    )
    assert f"on {laws} held-out distributions, its best estimate is within 10 %" in readme
    assert f"of the best method on {best['flatnce']}, nearest neigh" in readme
    assert (
        f"(KSG) are on {best['ksg']} and canonical correlations (CCA) on {best['cca']}." in readme
    )
    assert f"{above} of {tables} lower limits above the truth" in readme
    assert (
        f"covers the true value in {whole} of the tables** ({held} of {tables}; many "
        f"columns {many})" in readme
    )
    assert f"KSG is closer to the truth on {nearer} distributions" in readme
    assert f"the best estimate on {laws} held-out distributions" in results
    counted = [best[name] for name in ("flatnce", "ksg", "gaussian-copula", "cca")]
    assert "on {}; KSG on {}, a Gaussian copula on {}, CCA on {};".format(*counted) in results
    assert f"no lower limit above the truth ({above} of {tables})" in results
    assert f"the truth in {whole}** ({held} of {tables}): {many} with many columns" in results
    assert f"{small} for small images; KSG is closer on {nearer} distributions" in results
    assert f"On {laws} distributions that were held back it holds the truth in {held} of" in page
    assert f"in {held} of {tables} tables ({whole}).**" in page
    held = f"it holds the truth in {whole} of {tables} tables of held-out distributions"
    assert held in changes


def test_the_pages_give_the_coverage_on_the_43_distributions_and_without_information(score):
    own = [record for record in score.read([SUITE / "scores_20.jsonl"]).values()
           if record["method"] == "flatnce"]  # fmt: skip

    def held(*sizes):
        found = [share(own, score.ALL_LAWS, n) for n in sizes]
        return f"{100 * sum(a for a, _ in found) / sum(b for _, b in found):.1f} %"

    page = words_of("docs/mutual-information.md")
    _, tables = share(own, score.ALL_LAWS)
    assert f"On the {len(score.LAWS)} distributions of `benchmarks/mi_suite`" in page
    assert f"it holds the truth in {held(None)} of {tables:,} tables" in page
    assert f"at n = 200 and 1,000 in {held(200, 1000)}, at 5,000 in {held(5000)}." in page
    normal = (SUITE / "README.md").read_text(encoding="utf-8").split("## Near independence")[1]
    counts = [int(n) for n in re.findall(r"\| (\d{3}) \(", normal.split("\n## ")[0])]
    assert len(counts) == 10
    least, most = 100 * min(counts) / 400, percent(max(counts), 400)
    assert f"in {least:.0f} to {most} of 400 tables each" in page
    lines = (SUITE / "null_tables.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = Counter(json.loads(line)["kind"] for line in lines)
    assert set(kinds.values()) == {1000, 200}
    assert "1,000 tables each of independent rows, categories, words and 200 columns" in page
    assert "200 each of series with `--block auto` and of grouped rows" in page


def test_laws_on_which_no_method_is_nearer_count_methods_with_few_tables(score, capsys):
    tables = [("few-normal", 200, 0), ("few-normal", 200, 1), ("few-wave", 200, 0)]
    ours = {key: {"value": score.ALL_LAWS[key[0]].truth + 0.1} for key in tables}
    records = {(*key, "flatnce"): record for key, record in ours.items()}
    truth = score.ALL_LAWS["few-wave"].truth
    records["few-wave", 200, 0, "other"] = {"value": truth + 0.05}  # one table, and nearer
    score.print_least_favourable(records)
    assert "no method nearer by more than 10 %: 1 of 2 distributions" in capsys.readouterr().out


def test_a_run_continues_after_a_line_that_was_cut_off(score, tmp_path, monkeypatch):
    out = tmp_path / "scores.jsonl"
    [(key, record)] = _records("few-triangle", "cca", [0.25]).items()
    out.write_text(json.dumps(record) + '\n{"law": "few-tri')
    assert score.read([out]) == {key: record}

    class InOneProcess:
        def __init__(self, processes):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        imap_unordered = staticmethod(map)

    monkeypatch.setattr(score.multiprocessing, "get_context", lambda kind: _Context(InOneProcess))
    given = {"n": [200], "seeds": 2, "first_seed": 0, "laws": ["few-triangle"], "processes": 1}
    given["held_out"] = False
    score.run(argparse.Namespace(out=out, methods=["cca"], **given))
    found = score.read([out])
    assert len(found) == 2 and found[key]["value"] == 0.25  # kept, not computed again
    assert math.isfinite(found["few-triangle", 200, 1, "cca"]["value"])


class _Context:
    def __init__(self, pool):
        self.Pool = pool


def test_a_method_that_fails_is_recorded(score, monkeypatch):
    def fails(x, y, kinds, seed):
        raise RuntimeError("no answer")

    monkeypatch.setitem(score.METHODS, "fails", fails)
    record = score.fit(("few-triangle", 60, 0, "fails"))
    assert record["error"] == "RuntimeError: no answer" and score.answer_of(record) == 0.0


def test_adapters_pass_labels_nats_and_batches_that_the_packages_accept(score, monkeypatch):
    calls = []

    def record(name, value=0.5):
        def function(x, y, **choices):
            calls.append((name, np.shape(x), np.shape(y), choices))
            return value

        return function

    names = ("midd", "micd", "mi")
    npeet = types.SimpleNamespace(**{name: record(name) for name in names})
    monkeypatch.setitem(sys.modules, "npeet_plus", npeet)
    for law in ("categories-xor", "labels-rings", "mixed-steps", "few-swissroll"):
        assert score.fit((law, 50, 0, "npeet"))["value"] == 0.5
    nats = {"base": math.e}
    assert calls == [
        ("midd", (50,), (50,), nats),
        ("micd", (50, 2), (50, 1), nats),
        ("micd", (50, 1), (50, 1), nats),  # Y is the number and X the label
        ("mi", (50, 2), (50, 1), nats),
    ]

    def infonce(batch_size, seed, verbose):
        assert batch_size < 25 and seed == 3
        return types.SimpleNamespace(estimate=record("infonce", math.nan))

    bmi = types.SimpleNamespace(estimators=types.SimpleNamespace(InfoNCEEstimator=infonce))
    monkeypatch.setitem(sys.modules, "bmi", bmi)
    found = score.fit(("few-normal", 50, 3, "bmi-infonce"))
    assert found["value"] is None and "error" not in found


def test_surveys_of_many_kinds_are_not_called_duplicated_and_copies_are_found():
    duplicates = _module("duplicates")
    del sys.modules["duplicates"]
    records = [duplicates.count(kind, 400, 10) for kind in duplicates.KINDS]
    assert sum(record["alarms"] for record in records) <= 1 and len(records) > 10
    found = {record["kind"]: record["found"] for record in records}
    assert all(each["100%"] == 1 for each in found.values())
    for name in ("age_and_income", "city_and_income", "body", "questionnaire"):
        assert found[name]["20%"] == 1, name
