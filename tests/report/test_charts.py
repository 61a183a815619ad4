"""Charts: as SVG elements of a page, and as files for a paper."""

import re
from xml.etree import ElementTree

import pytest

from flatnce.report.charts import (
    Axis,
    Chart,
    Fit,
    Line,
    Reference,
    bar_chart,
    line_chart,
    scatter_chart,
    write_figures,
)

BEGINS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


def lines(**changes):
    given = {
        "name": "chart-loss",
        "title": "T & <T>",
        "description": "D",
        "lines": [Line("one", [0.0, 1.0, 2.0], [1.0, 2.0, 1.5], [0.1, 0.2, 0.1])],
        "x": Axis("x"),
        "y": Axis("y"),
    }
    return line_chart(**given | changes)


def both_kinds():
    """A curve with a gap and a histogram, in per cent, with a reference."""
    given = [
        Line("one", [0.0, 1.0, 2.0], [0.1, None, 0.3], [0.01, None, 0.02], 0),
        Line("two", [0.0, 1.0, 1.0, 2.0], [0.0, 0.2, 0.1, 0.0], None, 7, filled=True),
    ]
    axis = Axis("accuracy (%)", low=0.0, factor=100.0)
    return lines(lines=given, x=Axis("epoch"), y=axis, references=[Reference("log 8", 0.5)])


def scatter(**changes):
    clouds = [
        Line("InfoNCE", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]),
        Line("FlatNCE", [2.0, 4.0], [4.5, 8.0], series=1),
    ]
    given = {"clouds": clouds, "x": Axis("MI"), "y": Axis("top-1"), "fit": Fit(2.0, 0.0, "ρ = 1")}
    return scatter_chart("chart-embedding", "T", "D", **given | changes)


def bars(**changes):
    groups = [
        Line("InfoNCE", [0.0, 1.0], [0.5, None], [0.1, None]),
        Line("FlatNCE", [0.0, 1.0], [0.6, 0.8], series=1),
    ]
    given = {"categories": ["cifar10", "flowers"], "bars": groups}
    given |= {"x": Axis("set"), "y": Axis("top-1")}
    return bar_chart("b", "T", "D", **given | changes)


def tree(chart):
    return ElementTree.fromstring(chart.svg())


def words(chart):
    return [text.text for text in tree(chart).iter("text")]


def part(chart, name, what):
    """The elements of one kind inside a part of a chart."""
    return tree(chart).findall(f".//*[@id='{chart.name}-{name}']//{what}")


def points(element):
    numbers = [float(number) for number in re.findall(r"[-\d.]+", element.get("d"))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("make", [both_kinds, scatter, bars])
def test_a_chart_is_well_formed_and_its_ids_are_unique(make):
    found = [element.get("id") for element in tree(make()).iter() if element.get("id")]
    assert len(found) == len(set(found)) and all(one.startswith(make().name) for one in found)


def test_a_chart_escapes_its_text_and_follows_the_theme():
    root, svg = tree(lines()), lines().svg()
    assert root.find("title").text == "T & <T>"
    assert root.get("aria-labelledby") == "chart-loss-title chart-loss-desc"
    assert "var(--series-0)" in svg and "var(--ink)" in svg and not re.search("#[0-9a-f]{6};", svg)
    assert "http" not in svg


def test_a_band_goes_there_and_back_and_a_missing_value_leaves_a_point_out():
    (shape,) = part(lines(), "band-0", "path")
    assert len(set(points(shape))) == 6
    assert len(points(part(both_kinds(), "mark-0", "path")[0])) == 2  # one value is missing


def test_a_reference_is_drawn_where_it_lies_and_named():
    chart = lines(references=[Reference("log 8", 2.08)], y=Axis("y", low=0.0))
    ((_, y), _) = points(part(chart, "reference-0", "path")[0])
    curve = points(part(chart, "mark-0", "path")[0])
    scale = (curve[0][1] - curve[1][1]) / (2.0 - 1.0)
    assert (curve[0][1] - y) / scale == pytest.approx(2.08 - 1.0, abs=1e-3)
    assert "log 8" in words(chart)


@pytest.mark.parametrize("low, high", [(0.0, 7.6), (-3.2, 1.1), (0.001, 0.0043), (0.0, 1e6)])
def test_ticks_cover_the_range_with_round_steps(low, high):
    chart = lines(lines=[Line("one", [0.0, 1.0], [low, high])], x=Axis("x", ticks=[0.0]))
    shown = [word.replace(",", "") for word in words(chart)]
    ticks = [float(word) for word in shown[1:] if re.fullmatch(r"-?[\d.]+", word)]
    assert min(ticks) <= low and max(ticks) >= high and 3 <= len(ticks) <= 12


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.97, 1.0]])
def test_a_share_ends_at_100_per_cent(values):
    chart = lines(lines=[Line("kNN", [0.0, 1.0], values)], y=Axis("accuracy (%)", factor=100.0))
    ticks = [float(word) for word in words(chart) if re.fullmatch(r"[\d.]+", word)]
    assert max(ticks) == 100.0


def test_a_logarithmic_axis_has_powers_of_ten():
    given = [Line("a", [0.003, 0.2], [1.0, 2.0])]
    chart = lines(lines=given, x=Axis("rate", logarithmic=True))
    assert {"0.001", "0.01", "0.1", "1"} <= set(words(chart))


def test_a_scatter_draws_every_point_its_names_and_the_fitted_line():
    found = scatter()
    assert [len(part(found, f"mark-{n}", "use")) for n in range(2)] == [3, 2]
    assert {"InfoNCE", "FlatNCE", "ρ = 1"} <= set(words(found))
    (x1, y1), (x2, y2) = points(part(found, "fit", "path")[0])
    first = part(found, "mark-0", "use")[0]
    assert (float(first.get("x")), float(first.get("y"))) == pytest.approx((x1, y1), abs=0.1)
    assert x2 > x1 and y2 < y1  # upwards


def test_bars_stand_on_zero_and_are_as_high_as_their_values():
    found = bars()
    shapes = [part(found, name, "path")[0] for name in ("mark-0-0", "mark-1-0", "mark-1-1")]
    feet = [max(y for _, y in points(shape)) for shape in shapes]
    heights = [max(y for _, y in points(s)) - min(y for _, y in points(s)) for s in shapes]
    assert max(feet) - min(feet) < 0.1
    assert heights[2] / heights[0] == pytest.approx(1.6, abs=0.01)
    assert {"cifar10", "flowers", "InfoNCE", "FlatNCE"} <= set(words(found))


def test_every_chart_is_written_in_every_format(tmp_path):
    files = write_figures([both_kinds(), scatter()], tmp_path / "new" / "figures")
    assert [file.name for file in files] == [
        f"{name}.{ending}" for name in ("loss", "embedding") for ending in BEGINS
    ]
    for file in files:
        assert file.read_bytes().startswith(BEGINS[file.suffix[1:]])
    # Words stay words, and numbers are in the axis' unit.
    text = files[1].read_text(encoding="utf-8")
    assert all(word in text for word in ("accuracy (%)", "epoch", "one", "two", "log 8", ">30<"))


@pytest.mark.parametrize("name", [r"$\frac$", "_background_", "5 $ and 6 $", "犬"])
def test_names_of_classes_are_shown_as_they_are(name):
    clouds = [Line(name, [0.0], [1.0]), Line("other", [1.0], [0.0], series=1)]
    assert name in words(scatter(clouds=clouds))


def test_the_same_figure_twice_is_the_same_file(tmp_path):
    both = [write_figures([both_kinds()], tmp_path / name) for name in "ab"]
    for first, second in zip(*both, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ValueError, match="is a file"):
        write_figures([lines()], tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_chart_is_drawn_again_only_if_something_has_changed(monkeypatch):
    drawn = []
    draw = Chart._drawn_svg
    monkeypatch.setattr(Chart, "_drawn_svg", lambda self: drawn.append(self.name) or draw(self))
    first = lines(name="chart-once").svg()
    assert lines(name="chart-once").svg() == first and drawn == ["chart-once"]
    more = [Line("one", [0.0, 1.0], [1.0, 2.0])]
    assert lines(name="chart-once", lines=more).svg() != first
    assert scatter().svg() != scatter(fit=None).svg() and len(drawn) == 4
