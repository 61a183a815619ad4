"""A part of the labels."""

import pytest
import torch

from flatnce.pretrain.data import ImageSet, MissingData, holdout, label_fraction, label_list, load
from tiny_sets import write_folder

LABELS = torch.arange(1000) % 7


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.333, 1.0])
def test_every_class_keeps_the_same_fraction(fraction):
    chosen = label_fraction(LABELS, fraction, seed=0)
    kept, whole = torch.bincount(LABELS[chosen]), torch.bincount(LABELS)
    assert torch.equal(kept, (whole * fraction + 0.5).floor().long())
    assert torch.equal(chosen, chosen.unique())


def test_a_draw_is_decided_by_its_seed():
    first, again, other = (label_fraction(LABELS, 0.1, seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_smaller_fraction_is_part_of_a_larger_one():
    few, many = (set(label_fraction(LABELS, f, seed=0).tolist()) for f in (0.01, 0.1))
    assert few < many


def test_every_image_is_as_likely_to_be_drawn():
    labels = torch.zeros(20).long()
    drawn = torch.cat([label_fraction(labels, 0.25, seed) for seed in range(2000)])
    share = torch.bincount(drawn) / 2000
    # Five standard errors of a share of 1/4 over 2,000 draws.
    assert (share - 0.25).abs().max() < 5 * (0.25 * 0.75 / 2000) ** 0.5


def test_a_fraction_that_leaves_a_class_without_images_is_refused():
    labels = torch.tensor([0] * 500 + [1] * 30 + [2] * 500)
    with pytest.raises(ValueError, match=r"fraction=0.01 leaves class 1, which has 30 .* 0.017"):
        label_fraction(labels, 0.01, seed=0)
    assert torch.bincount(labels[label_fraction(labels, 0.017, seed=0)])[1] == 1


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan")])
def test_a_bad_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match="fraction="):
        label_fraction(LABELS, fraction, seed=0)


@pytest.mark.parametrize(
    "labels", [torch.zeros(4, 3), torch.zeros(4), torch.zeros(0).long(), torch.tensor([0, -1])]
)
def test_labels_that_have_no_classes_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        label_fraction(labels, 0.5, seed=0)


def test_what_is_held_out_and_what_stays_are_the_whole():
    rest, held = holdout(LABELS, 0.2, seed=0)
    assert torch.equal(torch.cat([rest, held]).sort().values, torch.arange(1000))
    assert torch.equal(held, label_fraction(LABELS, 0.2, seed=0))
    with pytest.raises(ValueError, match="holds every image out"):
        holdout(LABELS, 1.0, seed=0)


@pytest.fixture
def photos(tmp_path):
    return load(str(write_folder(tmp_path / "photos", {"cat": 3, "dog": 3})))


def listed(tmp_path, *lines):
    file = tmp_path / "list.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_list_of_files_is_found_with_and_without_folders(photos, tmp_path):
    file = listed(tmp_path, "# one a class", "dog_2.png", "", "cat/cat_1.png")
    assert label_list(file, photos).tolist() == [5, 1]


def test_a_list_of_numbers_is_for_a_set_in_memory(tmp_path):
    few = ImageSet(torch.zeros(4, 1, 2, 2).byte(), torch.zeros(4).long(), ("one",))
    assert label_list(listed(tmp_path, "3", "0"), few).tolist() == [3, 0]


def test_a_file_name_that_stands_for_several_needs_its_folder(tmp_path):
    root = write_folder(tmp_path / "photos", {"cat": 1, "dog": 1})
    (root / "dog" / "dog_0.png").rename(root / "dog" / "cat_0.png")
    with pytest.raises(ValueError, match="more than once, so that they need their folder"):
        label_list(listed(tmp_path, "cat_0.png"), load(str(root)))
    assert label_list(listed(tmp_path, "dog/cat_0.png"), load(str(root))).tolist() == [1]


@pytest.mark.parametrize(
    "lines, message",
    [
        (("cat_1.png", "emu_7.png", "emu_8.png"), r"2 of 3 images are not in .*emu_7.png, emu_8"),
        (("cat_1.png", "cat/cat_1.png"), r"twice: cat_1.png"),
        (("# nothing",), "0 of 0 images"),
    ],
)
def test_bad_lists_are_refused(photos, tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        label_list(listed(tmp_path, *lines), photos)
    with pytest.raises(MissingData, match=r"nowhere\.txt"):
        label_list(tmp_path / "nowhere.txt", photos)
