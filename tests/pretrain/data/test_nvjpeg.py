"""Crops of files that are decoded on the device, beside those of the worker processes."""

import pytest
import torch
from PIL import Image

from flatnce.pretrain.data import Streaming, UnreadableImage, Views, crops, load
from flatnce.pretrain.data.crops import DeviceCrops, crop_files
from flatnce.pretrain.data.image_set import read_bytes
from pictures import pictures
from tiny_sets import write_folder

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(60, 80), (75, 40), (90, 30), (64, 64)]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]  # torchvision decodes lists on both


@pytest.fixture
def files(tmp_path):
    """JPEGs of several shapes; one with four colours, and a PNG, which nvJPEG does not decode."""
    for number in range(12):
        picture = pictures(number + 1, 3, *SHAPES[number % 4])[0].permute(1, 2, 0).numpy()
        image = Image.fromarray(picture)
        image = image.convert("CMYK") if number == 5 else image
        image.save(tmp_path / f"{number:02}.{'png' if number == 2 else 'jpg'}", quality=95)
    return load(f"{tmp_path}/", size=32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("canvas", [2**25, 80 * 80 * 2])
def test_crops_are_those_of_the_workers(files, device, canvas, monkeypatch):
    monkeypatch.setattr(crops, "CANVAS", canvas)
    views = Views(24, seed=1, crop=(0.2, 0.6))
    batches = [torch.tensor([3, 0, 5, 2, 11]), torch.tensor([7]), torch.arange(12)]
    made = DeviceCrops(files.paths, views, 2, torch.device(device)).epoch(batches, 3)
    for batch, found in zip(batches, made, strict=True):
        expected = crop_files([files.paths[i] for i in batch.tolist()], batch, views, 3, 2)
        difference = (found.cpu().int() - expected.int()).abs().float()
        assert found.shape == expected.shape and found.device.type == device
        assert difference.mean() < (0.5 if device == "cpu" else 3)
        assert difference.max() <= 2 or device == "cuda"


def test_a_file_that_nvjpeg_refuses_is_decoded_by_pillow(files, monkeypatch):
    views = Views(24, seed=1, crop=(0.2, 0.5))  # too small to be decoded smaller
    crops = DeviceCrops(files.paths, views, 2, torch.device("cpu"))
    indices = torch.arange(12)
    expected = crop_files(files.paths, indices, views, 0, 2)
    decode, refused = crops.io.decode_jpeg, []

    def refusing(contents, *options, **more):
        if any(len(content) == length for content in contents):
            refused.append(len(contents))
            raise RuntimeError("unsupported")
        return decode(contents, *options, **more)

    length = len(read_bytes(files.paths[4]))
    monkeypatch.setattr(crops.io, "decode_jpeg", refusing)
    (found,) = crops.epoch([indices], 0)
    assert (found.int() - expected.int()).abs().max() <= 2
    assert refused == [11, 1]  # all JPEGs, and then the one


def test_a_damaged_file_is_named(tmp_path):
    write_folder(tmp_path, {"cat": 3})
    (tmp_path / "cat" / "short.jpg").write_bytes(b"\xff\xd8\xff")
    files = load(str(tmp_path))
    crops = DeviceCrops(files.paths, Views(8, seed=0), 2, torch.device("cpu"))
    with pytest.raises(UnreadableImage, match=r"short.jpg cannot be read"):
        list(crops.epoch([torch.arange(4)], 0))


def test_a_device_that_cannot_decode_is_refused(files):
    with pytest.raises(ValueError, match="decode='gpu' needs a GPU, and device=cpu"):
        Streaming(files, 4, 0, views=Views(8, seed=0), decode="gpu")
    with pytest.raises(ValueError, match="decode='tpu'"):
        Streaming(files, 4, 0, decode="tpu")


@needs_cuda
def test_streaming_gives_crops_of_nvjpeg(files):
    views = Views(24, seed=1)
    options = {"views": views, "device": "cuda", "workers": 2}
    ours, theirs = (
        Streaming(files, 4, 0, **options, decode=decode).epoch(0, start=1)
        for decode in ("gpu", "cpu")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.indices, other.indices) and one.images.shape == other.images.shape
        assert views(one.images, one.indices, 0).isfinite().all()
