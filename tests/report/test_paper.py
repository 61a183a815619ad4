"""Figures for papers."""

import pytest

from flatnce.report.charts import Axis, Cloud, Line, Reference
from flatnce.report.page import Table
from flatnce.report.paper import write_figures
from flatnce.report.pictured import Curves, Scattered

TABLE = Table("t", ["x"], [["1"]])
BEGINS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


def curves(name="loss"):
    lines = [
        Line("one", [0.0, 1.0, 2.0], [0.1, None, 0.3], [0.01, None, 0.02], 0),
        Line("two", [0.0, 1.0, 1.0, 2.0], [0.0, 0.2, 0.1, 0.0], None, 7, filled=True),
    ]
    axis = Axis("accuracy (%)", low=0.0, factor=100.0)
    given = (lines, Axis("epoch"), axis, TABLE, [Reference("log 8", 0.5)])
    return Curves(name, "T", "C", "D", *given)


def scattered():
    clouds = [Cloud(f"kind {n}", [float(n)], [1.0], n) for n in range(12)]
    return Scattered("embedding", "T", "C", "D", clouds, Axis("PCA 1"), Axis("PCA 2"), TABLE)


def test_every_chart_is_written_in_every_format(tmp_path):
    files = write_figures([curves(), scattered()], tmp_path / "new" / "figures")
    assert [file.name for file in files] == [
        f"{name}.{ending}" for name in ("loss", "embedding") for ending in BEGINS
    ]
    for file in files:
        assert file.read_bytes().startswith(BEGINS[file.suffix[1:]])


def test_words_stay_words_and_numbers_are_in_the_axis_unit(tmp_path):
    (file,) = write_figures([curves()], tmp_path, ["svg"])
    text = file.read_text(encoding="utf-8")
    assert all(word in text for word in ("accuracy (%)", "epoch", "one", "two", "log 8", ">30<"))


@pytest.mark.parametrize("name", [r"$\frac$", "_background_", "5 $ and 6 $"])
def test_names_of_classes_are_shown_as_they_are(name, tmp_path):
    clouds = [Cloud(name, [0.0], [1.0], 0), Cloud("other", [1.0], [0.0], 1)]
    picture = Scattered("e", "T", "C", "D", clouds, Axis("x"), Axis("y"), TABLE)
    (file,) = write_figures([picture], tmp_path, ["svg"])
    assert f">{name}<" in file.read_text(encoding="utf-8")


def test_the_same_figure_twice_is_the_same_file(tmp_path):
    both = [write_figures([curves()], tmp_path / name, ["svg", "pdf"]) for name in "ab"]
    for first, second in zip(*both, strict=True):
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("formats", [["gif"], ["pdf", "jpg"], []])
def test_a_format_that_is_not_there_is_refused(tmp_path, formats):
    with pytest.raises(ValueError, match="pdf, svg, png"):
        write_figures([curves()], tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_kept(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ValueError, match="is a file"):
        write_figures([curves()], tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "keep"
