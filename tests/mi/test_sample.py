"""The sample table: made by its generator, of the law that it states, and there by its name."""

import math

import numpy as np
import pytest

import make_sample
from flatnce import cli
from flatnce.mi.tables import describe_columns, read_tables


def test_the_file_is_what_its_generator_writes():
    assert make_sample.SAMPLE.read_text(encoding="utf-8") == make_sample.text()


def test_the_table_follows_the_law_in_its_head():
    found = read_tables(["sample"], x="height,weight", y="income")
    x, y = found.x.to_numpy(), np.log(found.y.to_numpy()[:, 0])
    assert len(x) == make_sample.ROWS and found.notes == ()
    design = np.column_stack([np.ones(len(x)), x - [170, 70]])
    (start, of_height, of_weight), residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    assert start == pytest.approx(math.log(30_000), abs=0.03)
    assert (of_height, of_weight) == pytest.approx((0.02, 0.01), abs=0.004)
    explained = 1 - float(residual[0]) / (len(y) * y.var())
    assert -0.5 * math.log(1 - explained) == pytest.approx(make_sample.TRUTH, abs=0.05)


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [column["name"] for column in describe_columns("sample")] == [
        "height",
        "weight",
        "income",
    ]
    (tmp_path / "sample").mkdir()
    with pytest.raises(IsADirectoryError):
        describe_columns("sample")


def test_the_line_of_the_readme_works_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    typed = "mi sample --x height,weight --y income --method gaussian-copula".split()
    assert cli.main(typed) == 0
    estimate = float(capsys.readouterr().out.split("≈ ")[1].split()[0])
    assert estimate == pytest.approx(make_sample.TRUTH, abs=0.05)
