"""Crops of image files: boxes and pixels beside torchvision's, and the same whoever decodes."""

import pytest
import torch
from PIL import Image
from scipy import stats
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as v2

from flatnce.pretrain.data import FolderSet, Resident, Streaming, UnreadableImage, Views, load
from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.crops import crop_files, crop_image
from flatnce.pretrain.data.image_set import open_image, read_bytes
from pictures import pictures
from tiny_sets import write_folder

SHAPES = {  # height, width
    "photograph": (375, 500),
    "portrait": (640, 427),
    "panorama, always the fallback": (40, 400),
    "strip, always the fallback": (300, 20),
    "three pixels": (3, 3),
}
READINGS = {
    "area": lambda top, left, h, w: h * w,
    "ratio": lambda top, left, h, w: w / h,
    "top": lambda top, left, h, w: top,
    "left": lambda top, left, h, w: left,
    "middle": lambda top, left, h, w: (top + h / 2) * (left + w / 2),
}
COUNT = 4000


@pytest.fixture(scope="module")
def drawn():
    """Boxes of all shapes, drawn in one batch by ours and one by one by torchvision."""
    each = list(SHAPES.values()) * COUNT
    heights, widths = zip(*each, strict=True)
    ours = Views(224, seed=3).boxes(torch.arange(len(each)), 1, heights, widths)
    ours = torch.stack(ours[:4]).unflatten(1, (COUNT, len(SHAPES))).transpose(1, 2).flatten(2)
    torch.manual_seed(0)
    draw = RandomResizedCrop.get_params
    theirs = [
        [draw(torch.empty(1, *shape), (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(COUNT)]
        for shape in SHAPES.values()
    ]
    return ours.double(), torch.tensor(theirs).double().permute(2, 0, 1)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=list(SHAPES))
def test_boxes_of_whole_images_are_distributed_as_torchvisions(drawn, shape, reading):
    ours, theirs = (READINGS[reading](*boxes[:, shape]) for boxes in drawn)
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_the_boxes_are_those_of_images_on_a_device(shape):
    views, indices, (height, width) = Views(20, seed=5), torch.arange(7), SHAPES[shape]
    found = views.boxes(indices, 2, [height] * 7, [width] * 7)
    planned = views.plan(draws.view_keys(5, 2, indices, 2), height, width).boxes
    assert torch.equal(torch.stack(found[:4]), torch.stack(planned[:4]))


def photograph(path, height, width, **options):
    pixels = pictures(1, 3, height, width)[0].permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(path, **options)
    return str(path)


@pytest.mark.parametrize("name", ["photo.jpg", "photo.png"])
@pytest.mark.parametrize("shape", [(375, 500), (40, 400), (30, 20)])
def test_a_crop_has_torchvisions_pixels(tmp_path, name, shape):
    path = photograph(tmp_path / name, *shape)
    views, number = Views(64, seed=1, crop=(0.08, 0.11)), 3  # too small to be decoded smaller
    indices = torch.tensor([11])
    found = crop_files([path], indices, views, 4, number)[0]
    with Image.open(path) as image:
        whole = image.convert("RGB")
    boxes = torch.stack(views.boxes(indices, 4, *([side] for side in shape), number)[:4], dim=-1)
    for crop, box in zip(found, boxes[0].long().tolist(), strict=True):
        # Exactly those of a uint8 tensor; of Pillow's image within its rounding.
        of_tensor = v2.resized_crop(F.pil_to_tensor(whole), *box, [64, 64], antialias=True)
        if torch.backends.cpu.get_cpu_capability().startswith("AVX"):  # else it resizes floats
            assert torch.equal(crop, of_tensor)
        of_image = F.pil_to_tensor(F.resized_crop(whole, *box, [64, 64]))
        assert (crop.int() - of_image.int()).abs().max() <= 1


def test_a_large_photograph_is_decoded_smaller_within_two_levels(tmp_path):
    path, size = photograph(tmp_path / "large.jpg", 900, 1203, quality=95), 96
    boxes = torch.tensor([[13.0, 57.0, 800.0, 1001.0], [300.0, 400.0, 401.0, 390.0]])
    image = open_image(path)
    found = torch.stack(list(crop_image(image, path, read_bytes(path), boxes, size)))
    assert image.size == (301, 225)  # a quarter: 390 pixels become 97, and the view has 96
    with Image.open(path) as opened:
        whole = F.pil_to_tensor(opened)
    for crop, box in zip(found, boxes.long().tolist(), strict=True):
        exact = F.resized_crop(whole, *box, [size, size], antialias=True)
        difference = (crop.int() - exact.int()).abs().float()
        assert difference.mean() < 2 and difference.quantile(0.99) <= 8


@pytest.mark.parametrize("least", [24, 47, 48, 95, 96, 191, 192, 400])
@pytest.mark.filterwarnings("ignore:The image decoding and encoding")
def test_a_photograph_is_decoded_no_smaller_than_its_views(tmp_path, least):
    path = photograph(tmp_path / "large.jpg", 400, 420)
    image = open_image(path)
    box = torch.tensor([[0.0, 0.0, 400.0, least]])
    list(crop_image(image, path, read_bytes(path), box, 24))
    assert 400 / image.size[1] == max(power for power in (1, 2, 4, 8) if least / power >= 24)


def test_crops_reach_the_edges_of_a_wide_image(tmp_path):
    pixels = torch.zeros((64, 256, 3), dtype=torch.uint8)
    pixels[:, :64] = 255  # outside the centre square
    Image.fromarray(pixels.numpy()).save(tmp_path / "wide.png")
    crops = crop_files([str(tmp_path / "wide.png")] * 60, torch.arange(60), Views(8, seed=0), 0, 2)
    white = (crops.float().mean((2, 3, 4)) > 128).float().mean()
    assert 0.1 < white < 0.3  # about a quarter of the image


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "I;16"])
def test_files_of_other_modes_are_read_as_rgb(tmp_path, mode):
    name = tmp_path / ("photo.jpg" if mode in ("L", "CMYK") else "photo.png")
    image = Image.fromarray(pictures(1, 3, 24)[0].permute(1, 2, 0).numpy())
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    image.save(name)
    files = FolderSet((str(name),), torch.zeros(1).long(), ("one",), size=24)
    views = Views(24, seed=0, crop=(1.0, 1.0))
    crop = crop_files(files.paths, torch.arange(1), views, 0, 1)[0, 0]
    assert torch.equal(crop, files.decode(0))


# ---- through the loader


@pytest.fixture
def photos(tmp_path):
    write_folder(tmp_path, {"cat": 6, "dog": 5})
    return load(str(tmp_path), size=16)


def batches_of(loader, epoch, start=0):
    return [(batch.indices, batch.images) for batch in loader.epoch(epoch, start)]


def test_crops_depend_on_neither_workers_nor_batches_nor_where_the_epoch_begins(photos):
    views = Views(12, seed=7)
    whole = batches_of(Streaming(photos, 5, 3, workers=0, views=views), 1)
    assert whole[0][1].shape == (5, 2, 3, 12, 12)
    later = batches_of(Streaming(photos, 5, 3, workers=2, views=views), 1, start=1)
    for one, other in zip(whole[1], later[0], strict=True):
        assert torch.equal(one, other)
    indices, images = (torch.cat(part) for part in zip(*whole, strict=True))
    alone = Streaming(photos, 1, 3, workers=0, views=views, shuffle=False)
    by_number = {int(i): crops for i, crops in batches_of(alone, 1)}
    for number, crops in zip(indices.tolist(), images, strict=True):
        assert torch.equal(crops, by_number[number][0])
    other_epoch = batches_of(alone, 2)[0][1]
    assert not torch.equal(other_epoch, by_number[0])


def test_crops_become_the_views_of_the_images_in_memory(tmp_path):
    """Files of the size of the set: same boxes, flips and colours, and a level of rounding."""
    for number, picture in enumerate(pictures(8, 3, 40)):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    files, views = load(f"{tmp_path}/", size=40), Views(32, seed=7, mean=0.0, std=1.0)
    streaming = Streaming(files, 4, 0, workers=0, views=views)
    resident = Resident(files.decoded(), 4, 0)
    assert (streaming.stage, resident.stage) == ("crops", "images")
    for one, other in zip(streaming.epoch(3), resident.epoch(3), strict=True):
        ours, theirs = (views(batch.images, batch.indices, 3) for batch in (one, other))
        assert torch.equal(one.indices, other.indices)
        assert (ours - theirs).abs().mean() < 1 / 255


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_cropped_is_named(tmp_path, workers):
    write_folder(tmp_path, {"cat": 3})
    photograph(tmp_path / "cat" / "short.jpg", 60, 80)
    data = (tmp_path / "cat" / "short.jpg").read_bytes()
    (tmp_path / "cat" / "short.jpg").write_bytes(data[: len(data) // 2])
    loader = Streaming(load(str(tmp_path)), 4, seed=0, workers=workers, views=Views(8, seed=0))
    with pytest.raises(UnreadableImage, match=r"short.jpg cannot be read"):
        list(loader.epoch(0))


def test_crops_of_another_number_or_size_are_refused(photos):
    crops = next(Streaming(photos, 4, 0, workers=0, views=Views(12, seed=0)).epoch(0))
    for views, size in ((1, 12), (2, 11)):
        with pytest.raises(
            ValueError, match=rf"crops of shape \(batch, {views}, channels, {size}"
        ):
            Views(size, seed=0)(crops.images, crops.indices, 0, views)
