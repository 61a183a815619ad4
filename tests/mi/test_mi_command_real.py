"""``flatnce mi`` from a file to an answer, with the real estimator on few rows."""

import json

import numpy as np
import pytest

from flatnce.cli import main

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")

ROWS = 300
TINY = ["--device", "cpu", "--steps", "10", "--permutations", "19"]
QUICK = ["--device", "cpu", "--steps", "60", "--permutations", "99"]


@pytest.fixture
def frame():
    """Height says something about the embedding, noise does not; some cells are missing."""
    random = np.random.default_rng(0)
    height = random.normal(170, 10, ROWS)
    emb = 0.9 * (height - 170)[:, None] / 10 + 0.3 * random.normal(size=(ROWS, 2))
    return pd.DataFrame(
        {
            "Visit date": pd.date_range("2024-01-01", periods=ROWS).strftime("%d/%m/%Y"),
            "Height (cm)": np.where(random.random(ROWS) < 0.03, np.nan, height.round(2)),
            "Noise, dB": random.normal(size=ROWS).round(4),
            "site": random.choice(["Lyon", "Oslo"], ROWS),
            "emb_0": emb[:, 0].round(5),
            "emb_1": emb[:, 1].round(5),
        }
    )


@pytest.fixture
def data(frame, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame.to_csv("data.csv", index=False)
    return frame


def test_a_csv_becomes_a_sentence(data, capsys):
    assert main(["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", *QUICK]) == 0
    shown = capsys.readouterr()
    first = shown.out.splitlines()[0]
    assert first.startswith("I(X;Y) ≥ ") and "nats (95 %), estimate" in first
    assert "missing values" in shown.out and "no bound" in shown.out and shown.err == ""


def test_json_holds_numbers_in_bits_and_the_page_is_written(data, capsys):
    typed = ["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", "--bits", "--json"]
    assert main([*typed, "--report", "out.html", *QUICK]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unit"] == "bits" and 0 < said["lower"] < said["ceiling"]
    assert said["data"]["y"] == ["emb_0", "emb_1"] and said["page"] == "out.html"
    with open("out.html", encoding="utf-8") as file:
        page = file.read()
    assert said["sentence"] in page and "chart-training" in page and "chart-readings" in page


def test_folds_and_groups_go_together(data, capsys):
    data["person"] = np.arange(ROWS) // 5
    data.to_csv("data.csv", index=False)
    typed = ["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", "--group", "person"]
    assert main([*typed, "--cv", "3", "--report", *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "3 folds" in shown and "the page: mi.html" in shown


def test_a_classical_method_answers_without_a_limit(data, capsys):
    typed = ["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_0", "--method", "ksg", "--report"]
    assert main([*typed, *QUICK]) == 0
    assert "no lower limit" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda frame: frame.head(40), "at least 50"),
        (lambda frame: frame.assign(emb_0=1.0, emb_1=2.0), "y"),
        (lambda frame: frame.assign(**{"Height (cm)": 3}), "x"),
        (lambda frame: frame.assign(emb_0=np.inf), "infinite"),
    ],
)
def test_tables_of_no_use_are_refused_in_one_line(data, capsys, change, words):
    change(data).to_csv("data.csv", index=False)
    assert main(["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", *QUICK]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_copied_rows_are_found_and_said(data, capsys):
    pd.concat([data, data.head(60)]).to_csv("data.csv", index=False)
    assert main(["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "copies" in shown


def test_an_unknown_method_is_refused_with_what_there_is(data, capsys):
    assert main(["mi", "data.csv", "--x", "emb_0", "--y", "emb_1", "--method", "flatnse"]) == 2
    assert "flatnce" in capsys.readouterr().err


def test_methods_are_compared_in_one_table(data, capsys):
    typed = ["mi", "data.csv", "--x", "Height (cm)", "--y", "emb_*", "--compare", "infonce,cca"]
    assert main([*typed, *QUICK]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("method") and shown[1].startswith("infonce")
    assert "no bound" in shown[2]


def test_every_two_columns_are_paired(data, capsys):
    assert main(["mi", "data.csv", "--pairwise", "--x", "Height (cm),emb_*", *TINY]) == 0
    shown = capsys.readouterr().out
    assert shown.count("emb_0") == 2 and shown.startswith("first")


def test_the_curve_goes_to_infinitely_many_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    pd.DataFrame(random.normal(size=(420, 2)), columns=["a", "b"]).to_csv("d.csv", index=False)
    assert main(["mi", "d.csv", "--x", "a", "--y", "b", "--curve", *TINY]) == 0
    assert "infinitely many rows" in capsys.readouterr().out


def test_a_benchmark_states_the_truth(capsys):
    typed = ["mi", "--benchmark", "1v1-normal-0.75", "--methods", "cca", "--n", "200"]
    assert main([*typed, "--seeds", "2", "--json", *QUICK]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["true"] == pytest.approx(0.4133, abs=1e-3) and row["seeds"] == [0, 1]
