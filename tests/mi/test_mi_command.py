"""``flatnce mi``: options, output, page and refusals, and whole runs on few rows."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import numpy as np
import pytest

from estimates import ESTIMATE
from flatnce import mi
from flatnce.cli import main
from flatnce.mi.command import _shown_by, _with_page, run

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")

TABLE = """\
visit,height (cm),mass,emb_0,emb_1,site
2024-01-05,180,80,0.1,1,a
2024-01-06,,71,0.2,2,a
2024-01-07,165,60,0.3,3,b
2024-01-08,171,64,0.4,4,b
"""


class Printed(mi.Study):
    def table(self, unit="nats", most=None):
        return f"method  {unit}\nflatnce 4.84"


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Record the calls of the estimator; the table above is in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(TABLE)
    estimator = Mock()
    studies = ("compare", "pairwise", "rank", "lags")
    printed = Printed(("method",), {})
    for name, result in {"estimate": ESTIMATE, **dict.fromkeys(studies, printed)}.items():
        getattr(estimator, name).return_value = result
        monkeypatch.setattr(mi, name, getattr(estimator, name))
    return estimator.mock_calls


def test_the_answer_is_the_first_line(calls, capsys):
    assert run(["data.csv", "--x", "height (cm),mass", "--y", "emb_*"]) == 0
    shown = capsys.readouterr()
    start = "I(X;Y) ≥ 4.75 nats (95 %), estimate 4.84 ± 0.05, ceiling 7.82, p < 0.001\n"
    assert shown.out.startswith(start) and shown.err == ""
    assert "! low_ess: Few rows carry" in shown.out and "Try --cv 5." in shown.out
    ((name, (x, y), _),) = calls
    assert name == "estimate" and x.shape == y.shape == (4, 2)
    assert np.isnan(x.loc[1, "height (cm)"]) and y.loc[3, "emb_1"] == 4


def test_options_reach_the_estimator(calls):
    typed = "--method flo --critic joint --cv 5 --seed 3 --device cpu"
    typed += " --permutations 99 --batch-size 64 --steps 10 --group site"
    assert run(["data.csv", "--x", "mass", "--y", "emb_0", *typed.split()]) == 0
    options = calls[0][2]
    options.pop("progress")
    np.testing.assert_array_equal(options.pop("groups"), [0, 0, 1, 1])
    wanted = {"method": "flo", "critic": "joint", "folds": 5, "seed": 3}
    wanted |= {"device": "cpu", "permutations": 99, "batch_size": 64, "steps": 10, "blocks": None}
    assert options == wanted | {"independent": False}


def test_blocks_and_encodings_reach_the_reader(calls):
    typed = ["data.csv", "--x", "visit", "--y", "site", "--kind", "site=category", "--block", "2"]
    assert run(typed) == 0
    ((_, (x, y), options),) = calls
    np.testing.assert_array_equal(x["visit"], [0, 1, 2, 3])
    assert y.shape == (4, 2) and options["blocks"] == 2


@pytest.mark.parametrize(
    "typed, added",
    [
        (["data.csv", "--report"], ["data.csv", "--report", "mi.html"]),
        (["--report", "data.csv"], ["--report", "mi.html", "data.csv"]),
        (["--report", "out/mine.html"], ["--report", "out/mine.html"]),
        (["--report", "--seed", "1"], ["--report", "mi.html", "--seed", "1"]),
    ],
)
def test_the_page_has_a_default_name(typed, added):
    assert _with_page(typed) == added


def test_pairwise_takes_all_columns_and_groups(calls, capsys):
    assert run(["data.csv", "--pairwise", "--group", "site"]) == 0
    name, (table,), options = calls[0]
    assert name == "pairwise"
    assert list(table) == ["visit", "height (cm)", "mass", "emb_0", "emb_1"]
    assert options["groups"].tolist() == [0, 0, 1, 1]
    assert "Kinds: " in capsys.readouterr().out


def test_kinds_may_be_given_several_times(calls):
    typed = ["data.csv", "--x", "mass,emb_1", "--y", "emb_0"]
    assert run([*typed, "--kind", "mass=category", "--kind", "emb_1=category"]) == 0
    ((_, (x, _), _),) = calls
    assert x.shape == (4, 8)


def test_a_place_that_cannot_hold_the_page_is_refused_before_any_work(calls, capsys):
    typed = ["mi", "data.csv", "--x", "mass", "--y", "emb_0", "--report", "none/page.html"]
    assert main(typed) == 2 and calls == []
    assert "--report none/page.html is in a folder that does not exist" in capsys.readouterr().err
    Path("page.html").touch()
    assert main([*typed[:-1], "page.html"]) == 2 and calls == []
    assert "--report page.html already exists; name another, or --re" in capsys.readouterr().err
    assert Path("page.html").read_text() == ""


def test_ranking_takes_the_columns_of_x_and_all_of_y(calls):
    assert run(["data.csv", "--y", "emb_*", "--x", "mass,site", "--rank", "--block", "2"]) == 0
    name, (columns, target), options = calls[0]
    assert name == "rank" and list(columns) == ["mass", "site"] and target.shape == (4, 2)
    assert columns["site"].shape == (4, 2) and options["blocks"] == 2


@pytest.mark.parametrize("typed, wanted", [("-2..1", [-2, -1, 0, 1]), ("0,3", [0, 3])])
def test_lags_are_a_range_or_a_list(calls, typed, wanted):
    assert run(["data.csv", "--x", "mass", "--y", "emb_0", "--lags", typed]) == 0
    name, (_, _, lags), _ = calls[0]
    assert name == "lags" and lags == wanted


def test_arrays_that_cannot_be_used_are_listed_below_the_columns(tmp_path, capsys):
    path = tmp_path / "a.npz"
    np.savez(path, files=np.array(["a", "b"]), emb=np.ones((60, 2)), labels=np.arange(60))
    assert run([str(path), "--list-columns"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a.npz: 3 columns 0 emb_0 number 1 emb_1 number 2 labels number – files" in shown
    assert "files not a table of numbers To read" in shown


def test_columns_are_listed(calls, capsys):
    assert run(["data.csv", "--list-columns"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "data.csv: 6 columns 0 visit date 1 height (cm) number" in shown
    assert shown.endswith("COLUMN=KIND, one of number, category, ordinal, circular, date.")
    assert run(["data.csv", "--list-columns", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data.csv"][5]["kind"] == "category"
    assert calls == []


@pytest.mark.parametrize(
    "typed, code, words",
    [
        (["data.csv"], 2, "--x 'height (cm)' --y mass"),
        (["data.csv", "--x", "mass", "--y", "emb_0", "--kind", "mass=x"], 2, "--kind"),
        (["data.csv", "--x", "mass", "--y", "emb_0", "--lags", "1.."], 2, "give -10..10"),
        (["data.csv", "--x", "mass", "--y", "emb_0", "--lags", "5..1"], 2, "write --lags 1..5"),
        (["data.csv", "--lags", "0,1", "--rows", "3"], 2, "--lags counts rows of the whole file"),
        (
            ["data.csv", "--block", "5", "--rows", "99"],
            2,
            "--block, unlike --block auto, counts rows",
        ),
        (["data.csv", "--block", "5", "--group", "site"], 2, "only one of them"),
        (
            ["data.csv", "--x", "mass", "--group", "mass"],
            2,
            "--group mass is also a column of --x or --y",
        ),
        (
            ["data.csv", "--x", "mass", "--y", "emb_*", "--group", "emb_0"],
            2,
            "--group emb_0 is also a column of --x or --y; leave it out there",
        ),
        (["sample"], 2, "say which columns of sample are x"),
        (["sample", "--x", "age"], 2, "'age': sample has no such column"),
        (["data.csv", "--x", "mass", "--no-header"], 2, "leave out --no-header"),
        (["data.csv", "--x", "1", "--y", "2", "--no-header"], 2, "leave out --no-header"),
        (["data.csv", "--x", "SITE", "--y", "emb_0"], 2, "did you mean 'site'?"),
        (["dots.csv", "--x", "mass"], 1, "dots.csv does not exist; name a file"),
        (["data.txt", "--x", "mass"], 1, "did you mean 'data.csv'?"),
        (
            ["data.csv", "--x", "mass", "--y", "emb_0", "--kind", "mass=circular:abc"],
            2,
            "flatnce mi: --kind mass=circular:abc: ",
        ),
        (["data.csv", "--x", "mass", "--y", "mass"], 2, "both hold 'mass'"),
        (["dta.csv", "--x", "mass"], 1, "did you mean 'data.csv'?"),
        ([".", "--x", "mass"], 1, "folder"),
        (["--x", "mass"], 2, "name a file"),
        (["a", "b", "c"], 2, "3 files"),
        (["data.csv", "--rank", "--pairwise"], 2, "one at a time"),
        (["data.csv", "--compare", "auto", "--report"], 2, "--report"),
        (["data.csv", "--pairwise", "--y", "mass"], 2, "leave out --y"),
        (["data.csv", "--x", "mass", "--y", "emb_0", "--rows", "0"], 2, "--rows 0 must be at"),
        (["data.csv", "--x", "mass", "--y", "emb_0", "--rows", "49"], 2, "--rows 49 must be at"),
    ],
)
def test_misuse_is_one_line_that_says_what_to_do(calls, capsys, typed, code, words):
    assert main(["mi", *typed]) == code
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.startswith("flatnce mi: ")
    assert shown.err.count("\n") == 1 and shown.out == "" and calls == []


def test_help_fits_one_screen_and_shows_an_example(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "flatnce mi sample --x" in shown and "--report" in shown and "'emb_*'" in shown
    assert len(shown.splitlines()) < 50


@pytest.mark.parametrize("folds, words", [(1, "step 50 of"), (3, "fit 2 of 3  step 50 of")])
def test_training_progress_is_a_line(folds, words):
    now = SimpleNamespace(
        fold=1 if folds > 1 else 0, folds=folds, step=50, steps=2_000, train=1.234, validation=1.1
    )
    text = f"{words} at most 2,000  train 1.23  validation 1.10"
    shown = []
    _shown_by(shown.append, log=False)(now)
    assert shown == [text]


def test_many_fits_are_logged_once_a_tenth_where_there_is_no_terminal(capsys):
    for folds, log, lines in ((66, True, 10), (66, False, 0), (5, True, 0)):
        show = _shown_by(lambda text: None, log=log)
        for fold in range(folds):
            for step in (50, 100):
                numbers = {"step": step, "steps": 200, "train": 1.0, "validation": 1.0}
                show(SimpleNamespace(fold=fold, folds=folds, **numbers))
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == lines
        assert lines == 0 or said.err.startswith("fit 1 of 66 after 0 s\nfit 8 of 66 after")


# Whole runs, with the real estimator on few rows.

ROWS = 420
TINY = ["--device", "cpu", "--steps", "4", "--permutations", "19"]
HEIGHT = ["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Height says something about the embedding, noise does not; some cells are missing."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    height = random.normal(170, 10, ROWS)
    emb = 0.9 * (height - 170)[:, None] / 10 + 0.3 * random.normal(size=(ROWS, 2))
    frame = pd.DataFrame(
        {
            "Height (cm)": np.where(random.random(ROWS) < 0.03, np.nan, height.round(2)),
            "Noise, dB": random.normal(size=ROWS).round(4),
            "emb_0": emb[:, 0].round(5),
            "emb_1": emb[:, 1].round(5),
        }
    )
    frame.to_csv("data.csv", index=False)
    return frame


def test_json_holds_numbers_in_bits_and_the_page_is_written(data, capsys):
    typed = [*HEIGHT, "--bits", "--json", "--report", "out.html", "--device", "cpu"]
    assert main([*typed, "--steps", "30", "--permutations", "99"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unit"] == "bits" and 0 < said["lower"] < said["ceiling"]
    assert said["data"]["y"] == ["emb_0", "emb_1"] and said["page"] == "out.html"
    with open("out.html", encoding="utf-8") as file:
        page = re.sub(r"</?a\b[^>]*>", "", file.read())  # terms are links
    assert said["sentence"] in page and "chart-training" in page


def test_folds_and_groups_go_together(data, capsys):
    data["person"] = np.arange(ROWS) // 5
    data.to_csv("data.csv", index=False)
    assert main([*HEIGHT, "--group", "person", "--cv", "3", "--report", *TINY]) == 0
    shown = capsys.readouterr().out
    assert "3 folds" in shown and "the page: mi.html" in shown
    settings = Path("mi.html").read_text(encoding="utf-8").partition("All settings")[2]
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", settings)
    rows = dict(zip(cells[2::2], cells[3::2], strict=False))
    assert rows["--cv"] == "3" and rows["--block"] == rows["--independent"] == "not set"
    assert {"--group", "--batch-size", "pool"} <= set(rows) and not {"folds", "groups"} & set(rows)


def test_refusals_name_the_option_and_the_column(data, capsys):
    assert main([*HEIGHT, "--block", "400"]) == 2
    assert "flatnce mi: --block 400: blocks leave 2 sets" in capsys.readouterr().err
    data["part"] = np.arange(len(data)) % 3
    data["const"], data["empty"] = 1, np.nan
    data.to_csv("data.csv", index=False)
    assert main([*HEIGHT, "--group", "part"]) == 2
    assert "the groups (--group) leave 3 sets" in capsys.readouterr().err
    assert main(["mi", "data.csv", "--x", "empty,part", "--y", "emb_*"]) == 2
    assert "most are missing in 'empty'" in capsys.readouterr().err
    assert main(["mi", "data.csv", "--x", "const", "--y", "emb_*"]) == 2
    assert "all rows of x ('const') are equal" in capsys.readouterr().err


def test_methods_are_compared_in_one_table(data, capsys):
    assert main([*HEIGHT, "--compare", "infonce,cca", *TINY]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("method") and shown[1].startswith("infonce")
    assert shown[2].split()[2:] == ["–"] * 3


def test_studies_have_pages_with_pictures(data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rank = ["mi", "data.csv", "--y", "emb_1", "--rank", "--report", "rank.html", *TINY]
    assert main(rank) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("column ") and "the page: rank.html" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["mi", "data.csv", "--pairwise", "--report", "pairs.html", "--json", *TINY]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["rows"]) == 6 and said["unit"] == "nats" and said["page"] == "pairs.html"
    assert {"data", "environment"} <= set(said)  # as beside a single estimate
    lags = ["--x", "emb_0", "--y", "emb_1", "--lags", "-1..1", "--report", "lags.html"]
    assert main(["mi", "data.csv", *lags, "--block", "5", *TINY]) == 0
    for page in ("rank.html", "pairs.html", "lags.html"):
        with open(page, encoding="utf-8") as file:
            assert "chart-study" in file.read()


@pytest.mark.parametrize("json_or_text", [["--json"], []])
def test_the_answer_is_printed_even_if_the_page_cannot_be_written(data, capsys, json_or_text):
    failing = patch("flatnce.mi.page.mi_page", side_effect=PermissionError(13, "denied", "p.html"))
    with patch.object(mi, "estimate", return_value=ESTIMATE), failing:
        assert main([*HEIGHT, "--report", "p.html", *json_or_text]) == 1
    shown = capsys.readouterr()
    said = json.loads(shown.out)["sentence"] if json_or_text else " ".join(shown.out.split())
    assert ESTIMATE.sentence() in said and "p.html" in shown.err
    assert not Path("p.html").exists()


def test_an_earlier_page_is_replaced_on_request(data, capsys):
    with patch.object(mi, "estimate", return_value=ESTIMATE):
        assert main([*HEIGHT, "--report", "p.html"]) == 0
        Path("p.html").write_text(Path("p.html").read_text() + "<!-- earlier -->")
        assert main([*HEIGHT, "--report", "p.html"]) == 2
        assert "earlier" in Path("p.html").read_text()
        assert main([*HEIGHT, "--report", "p.html", "--replace"]) == 0
        assert "earlier" not in Path("p.html").read_text()


def test_flags_on_the_page_and_in_json_name_options(data, capsys):
    flags = (mi.Flag("small", "Try folds=5 (independent=True), or name it (groups=).", ""),)
    found = replace(ESTIMATE, flags=flags)
    with patch.object(mi, "estimate", return_value=found):
        assert main([*HEIGHT, "--report", "p.html", "--json"]) == 0
    said = "Try --cv 5 (--independent), or name it (--group)."
    assert json.loads(capsys.readouterr().out)["flags"][0]["message"] == said
    assert said in Path("p.html").read_text()


def test_a_column_with_the_name_of_an_option_is_named_in_the_advice(tmp_path, capsys):
    cells = [*map(str, range(100)), "abc"]
    text = "\n".join(["x,y", *(f"{cell},{i}" for i, cell in enumerate(cells))])
    (tmp_path / "data.csv").write_text(text, encoding="utf-8")
    assert main(["mi", str(tmp_path / "data.csv"), "--x", "x", "--y", "y"]) == 2
    assert "--kind x=category" in " ".join(capsys.readouterr().err.split())
