"""Inspection of an encoder: what is measured, and what the page shows."""

import base64
import io
import json

import pytest
import torch

import made_runs
from export_subjects import write_run
from flatnce.pretrain.data import ImageSet
from flatnce.pretrain.page.inspection import (
    inspect_encoder,
    is_current,
    picture_of,
    project,
)
from flatnce.pretrain.page.run import page_of_run, run_page
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog
from tiny_sets import write_image

FEW = {"images": 60, "pictures": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "first"
    write_run(place)
    inspect_encoder(place, **FEW, device="cpu")
    return place


@pytest.fixture(scope="module")
def portrait(run):
    return json.loads((run / "portrait.json").read_text(encoding="utf-8"))


def test_it_is_of_the_newest_checkpoint_and_of_test_images(portrait):
    assert (portrait["step"], portrait["part"], portrait["data"]) == (30, "test", "digits")
    assert portrait["images"] == len(portrait["projection"]["x"]) == 60


@pytest.mark.parametrize("kind, pairs", [("positive", 60), ("negative", 60 * 59)])
def test_histograms_hold_every_pair_once(portrait, kind, pairs):
    found = portrait["similarities"]
    assert found[f"{kind}_pairs"] == pairs
    assert sum(found[kind]) == pytest.approx(1, abs=1e-4)
    middles = [(a + b) / 2 for a, b in zip(found["edges"], found["edges"][1:], strict=False)]
    mean = sum(m * share for m, share in zip(middles, found[kind], strict=True))
    assert mean == pytest.approx(found[f"{kind}_mean"], abs=0.021)  # half a bin and rounding
    assert found["positive_mean"] > found["negative_mean"]


def test_neighbours_are_ordered_and_of_several_classes(portrait):
    queries = portrait["neighbours"]
    assert len({query["label"] for query in queries}) == len(queries) == 6
    for query in queries:
        cosines = [near["similarity"] for near in query["neighbours"]]
        assert cosines == sorted(cosines, reverse=True) and max(cosines) <= 1.0001
    assert 0 < portrait["nearest_same"] <= 1


def test_it_is_current_until_options_or_checkpoint_change(run):
    assert is_current(run, None, **FEW) and is_current(run, 30, **FEW)
    assert not is_current(run, 0, **FEW)
    assert not is_current(run, None, images=61, pictures=True)
    assert not is_current(run.parent, None, **FEW)


def test_without_pictures_the_page_has_words(tmp_path):
    place = write_run(tmp_path / "first")
    inspect_encoder(place, images=40, pictures=False, device="cpu")
    html = made_runs.html_without_charts(page_of_run(place))
    assert "Nearest neighbours" in html and "<img" not in html


def test_the_page_shows_it(run):
    html = run_page(run).read_text(encoding="utf-8")
    assert "the checkpoint of step 30, measured on 60 test samples of digits" in html
    assert html.count("<img ") == 6 * (1 + 5)
    for name in ("similarities", "embedding"):
        assert f'aria-labelledby="chart-{name}-title' in html
    assert len(html) < 300_000


def test_a_page_without_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path))
    html = made_runs.html_without_charts(page_of_run(made_runs.write_run(tmp_path / "plain")))
    assert "flatnce report plain" in html and "<img" not in html


def test_a_long_run_with_a_full_portrait_stays_small(tmp_path, portrait):
    place = made_runs.write_run(tmp_path / "long", finished=False)
    log = RunLog.reopen(place, kind="train", step=0)
    for line in made_runs.lines_of(steps=range(10, 10_001, 10)):
        log.log(line)
    many, picture = 1000, "data:image/jpeg;base64," + "A" * 5000
    across = [0.001 * n for n in range(many)]
    points = {"x": across, "y": across, "labels": [n % 30 for n in range(many)]}
    near = [{"label": "1", "picture": picture, "similarity": 0.9}] * 5
    full = portrait | {"projection": portrait["projection"] | points}
    full["classes"] = [f"class {n}" for n in range(30)]
    full["neighbours"] = [{"label": "1", "picture": picture, "neighbours": near}] * 6
    (place / "portrait.json").write_text(json.dumps(full))
    assert 300_000 < run_page(place).stat().st_size < 1_000_000
    clouds = made_runs.charts_of(page_of_run(place))[-1].data
    assert len(clouds) == 12 and clouds[-1].label == "other classes"


@pytest.mark.parametrize("written", ["{", "[1]", "{}", "3"])
def test_a_file_that_is_no_portrait_is_named_and_not_current(written, tmp_path):
    place = made_runs.write_run(tmp_path / "plain")
    (place / "portrait.json").write_text(written)
    assert not is_current(place, None, **FEW)
    with pytest.raises(ValueError, match=r"portrait\.json is damaged.*remove it"):
        run_page(place)


def test_a_diverged_encoder_is_named_and_writes_nothing(tmp_path):
    place = write_run(tmp_path / "first", steps=(0,))
    found = checkpoint.load(place / "checkpoints")
    broken = {
        name: torch.full_like(weight, torch.nan) if weight.is_floating_point() else weight
        for name, weight in found.weights.items()
    }
    made_runs.save_checkpoint(place / "checkpoints", 1, broken, found.state)
    with pytest.raises(ValueError, match=r"NaN or infinite values.*earlier checkpoint"):
        inspect_encoder(place, **FEW, device="cpu")
    assert not (place / "portrait.json").exists()


def test_images_without_labels_are_looked_at_without_classes(tmp_path):
    for number in range(12):
        write_image(tmp_path / "photos" / f"{number}.png", seed=number)
    asked = {"data": str(tmp_path / "photos"), "workers": 0, "batch_size": 8, "decode_size": 16}
    place = write_run(tmp_path / "first", channels=3, **asked)
    found = json.loads(inspect_encoder(place, **FEW, device="cpu").read_text(encoding="utf-8"))
    assert (found["part"], found["images"], found["classes"]) == ("training", 12, [])
    assert found["nearest_same"] is None and found["neighbours"][0]["label"] is None
    html = made_runs.html_without_charts(page_of_run(place))
    assert "12 training samples of" in html
    assert html.count("<img ") == 6 * (1 + 5) and "≠ " not in html.replace("≠ marks", "")


def test_too_few_images_are_refused(run):
    with pytest.raises(ValueError, match="images=3 must be at least 10"):
        inspect_encoder(run, images=3)


def test_principal_components_hold_distances_of_points_in_a_plane():
    basis, _ = torch.linalg.qr(torch.randn(5, 2))
    flat = torch.randn(20, 2) @ basis.T
    found = project(flat)
    placed = torch.tensor([found["x"], found["y"]]).T
    ours, theirs = (torch.cdist(points, points) for points in (placed, flat))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    assert sum(found["shares"]) == pytest.approx(1)
    assert found["shares"][0] >= found["shares"][1]


@pytest.mark.parametrize(
    "shape, kind, size", [((3, 32, 32), "PNG", (32, 32)), ((3, 96, 48), "JPEG", (32, 64))]
)
def test_pictures_are_small_and_keep_their_shape(shape, kind, size):
    image = pytest.importorskip("PIL.Image", reason="no pillow to look at the picture with")
    pixels = torch.randint(0, 256, (1, *shape), dtype=torch.uint8)
    text = picture_of(ImageSet(pixels, torch.tensor([0]), ("a",)), 0)
    with image.open(io.BytesIO(base64.b64decode(text.partition(",")[2]))) as found:
        assert (found.format, found.size) == (kind, size)
    assert len(text) < 6000
