"""Trained encoders by name, for images of any kind: ``flatnce.load("first").embed(images)``."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from flatnce.messages import check_at_least
from flatnce.pretrain import exporting
from flatnce.pretrain.data import image_set
from flatnce.pretrain.data.own_set import prepared_input
from flatnce.pretrain.data.readers import image_files
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.evaluation.features import to_channels
from flatnce.pretrain.runs.folder import find_run, run_name, runs_folder
from flatnce.pretrain.training.images import own_functions
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import load_encoder

__all__ = ["Embedder", "load"]

KINDS = "paths of files, a folder, numpy arrays, tensors, images of Pillow, or a list of images"


@dataclass(frozen=True, eq=False)
class Embedder:
    """A trained backbone without its projection head, and the preparation of its inputs."""

    name: str  #: Name of the run or the exported folder.
    step: int  #: Steps of training.
    width: int  #: Numbers per embedding.
    network: Callable[[Tensor], Tensor] = field(repr=False)  #: From prepared inputs to embeddings.
    #: Resizes, crops and normalises uint8 images. Of a run whose views a user's own code made: the
    #: user's function ``prepare``, or None if there is none.
    prepare: CentreCrop | Callable[[Any], Any] | None
    shape: tuple[int, ...]  #: Shape of an input in training.
    device: torch.device  #: Device of the network.

    def embed(
        self,
        images: Any,
        *,
        batch_size: int = 256,
        normalize: bool = False,
        progress: bool = False,
    ) -> Float[Tensor, "n width"]:
        """Embed images, or inputs of another kind; return one row for each, float32, on the CPU.

        The features are those that ``flatnce evaluate`` measures: the shorter side is resized to
        the size of training, and the centre square is used. Grey images become colour and colour
        images grey if the network needs it. A run whose views your own code made takes what its
        data set holds, prepared by its ``prepare``; without one, levels are scaled to [0, 1] and
        nothing is resized.

        Arguments:
            images: Paths of files, a folder (all images in it, sorted), numpy arrays (h, w, c) or
                (n, h, w, c), tensors (c, h, w) or (n, c, h, w), images of Pillow, or a list of
                such images, of any sizes, in which arrays (h, w) are grey. Numbers are bytes, or
                floats from 0 to 1, which are rounded to 256 levels. Three dimensions without 1 or
                3 channels are grey images (n, h, w); two are one grey image, if it has the size of
                training: others may be flattened images, so pass a grey image of another size in
                a list. Of your own data: a list or an array of inputs.
            batch_size: Images per pass.
            normalize: Scale each row to length one.
            progress: Count the images on standard error.
        """
        check_at_least("batch_size", batch_size, 1)
        items, parts = self._items(images), []
        with ThreadPoolExecutor(image_set.available_cores()) as pool, torch.no_grad():
            for start in range(0, len(items), batch_size):
                batch = items[start : start + batch_size]
                # Pillow reads a file on first use, which two threads must not do for one image.
                pillow = {id(one): one for one in batch if hasattr(one, "convert")}
                list(pool.map(lambda image: image.load(), pillow.values()))
                some = list(pool.map(self._input, batch))
                self._check_shapes([tuple(one.shape) for one in some])
                made = self.network(torch.stack(some).to(self.device)).to("cpu", torch.float32)
                parts.append(nn.functional.normalize(made) if normalize else made)
                if progress:
                    done, n = start + len(some), len(items)
                    end = "\n" if done == n else ""
                    print(f"\rembedded {done:,} of {n:,} images", end=end, file=sys.stderr)
        return torch.cat(parts)

    def _check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse what the network cannot take; images may be of another size than in training."""
        first, images = shapes[0], len(self.shape) == 3
        alike = len(first) == 3 if images else first == tuple(self.shape)
        if len(set(shapes)) > 1 or not alike:
            raise ValueError(
                f"images: a prepared item has shape {first}, and the network takes inputs of "
                f"shape {tuple(self.shape)}; pass a list or an array of these, all of one size"
            )

    def _items(self, images: Any) -> Sequence[Any]:
        """The images to embed, one by one."""
        found = images
        if isinstance(images, str | Path):
            path = Path(images).expanduser()
            found = image_files(path) if path.is_dir() else [path]
        elif isinstance(images, np.ndarray | Tensor):
            if isinstance(self.prepare, CentreCrop):
                size = tuple(self.shape[1:])
                if tuple(images.shape) == size:
                    images = images[None]
                if self.shape[0] == 1 and tuple(images.shape[1:]) == size:
                    images = images[:, None]  # three grey images are not one in colour
                found = _array_images(images)
            found = [np.asarray(one) if isinstance(found, np.ndarray) else one for one in found]
        elif hasattr(images, "convert"):  # an image of Pillow
            found = [images]
        if not isinstance(found, list | tuple):
            raise ValueError(f"images is a {type(images).__name__}; pass {KINDS}")
        if not found:
            raise ValueError(f"images={images!r} holds no image; pass {KINDS}")
        for one in found:
            if isinstance(one, str | Path) and not Path(one).expanduser().exists():
                raise ValueError(f"images: no such file or folder {str(one)!r}")
        return found

    def _input(self, source: Any) -> Tensor:
        """What the network sees of one item, as in evaluation."""
        if isinstance(source, str | Path):
            path = str(Path(source).expanduser())
            source = image_set.decode_rgb(image_set.open_image(path), path)
        if not isinstance(self.prepare, CentreCrop):
            return prepared_input(source, self.prepare, "images: an item")
        if hasattr(source, "convert"):  # an image of Pillow
            source = image_set.converted(source, "RGB")
            found = image_set.centre_square(source, self.prepare.size)[None]
        else:
            grey = getattr(source, "ndim", 0) == 2
            found = _array_images(source[None] if grey else source)
        if len(found) != 1:
            raise ValueError(f"images: an item of the list holds {len(found)} images, not one")
        return self.prepare(to_channels(found, self.shape[0]))[0]


def load(name: str | Path, *, step: int | None = None, device: str = "auto") -> Embedder:
    """Load a trained encoder, ready to embed images.

    Arguments:
        name: A run's name or folder; or a folder that ``flatnce export`` wrote, in any form, also
            as the Hugging Face hub keeps it after a download.
        step: The step of a checkpoint of a run; the newest by default.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:1``. An ONNX graph
            runs on the CPU.
    """
    chosen = choose_device(device)
    folder = _exported_folder(Path(name).expanduser())
    prepare: CentreCrop | Callable[[Any], Any] | None
    if folder is None:
        place = find_run(name, "name")
        loaded = load_encoder(place, step, chosen)
        mean, std = loaded.normalisation
        prepare = CentreCrop(loaded.size, mean=mean, std=std)
        if loaded.ready:
            prepare = own_functions(loaded.config.data, "prepare").get("prepare")
        facts = (run_name(place), loaded.step, loaded.encoder.width, loaded.encoder.backbone)
        return Embedder(*facts, prepare, loaded.shape, chosen)
    if step is not None:
        raise ValueError(f"step={step} chooses a checkpoint of a run; {folder} is an export")
    config = exporting.read_config(folder)[exporting.MARK]
    if config["form"] == "onnx":
        chosen, graph = torch.device("cpu"), exporting.open_graph(folder)
    else:
        graph = exporting.load_exported(folder).to(chosen)
    prepare, taken = exporting.preprocessing(folder), config["input"]
    shape = (taken["channels"], taken["size"], taken["size"])
    return Embedder(str(name), config["step"], config["features"], graph, prepare, shape, chosen)


def _exported_folder(path: Path) -> Path | None:
    """The folder of an export; None if the path is not one."""
    for place in (path, runs_folder() / path):
        newest = place / "refs" / "main"  # the hub's cache of one model
        if newest.is_file():
            place = place / "snapshots" / newest.read_text(encoding="utf-8").strip()
        if exporting.is_described(place):
            return place
    return None


def _array_images(array: Any) -> UInt8[Tensor, "n c h w"]:
    """Images of an array or a tensor, as bytes."""
    channels = {3: (1, 2, 3, 4), 4: (1, 3)}  # 2 and 4, with transparency, are refused below
    last = isinstance(array, np.ndarray) and array.shape[-1] in channels.get(array.ndim, ())
    if isinstance(array, np.ndarray):
        values = torch.from_numpy((np.moveaxis(array, -1, -3) if last else array).copy())
    elif isinstance(array, Tensor):
        values = array
    else:
        raise ValueError(f"images holds a {type(array).__name__}; pass {KINDS}")
    grey = values.ndim == 3 and values.shape[0] not in (1, 3) and not last
    if grey and values.shape[-1] != 3:  # a tensor (h, w, 3) is refused below
        values = values.unsqueeze(-3)
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4 or values.shape[1] not in (1, 3) or not values.numel():
        raise ValueError(
            f"images has shape {tuple(array.shape)}; pass arrays (h, w, c) or (n, h, w, c), "
            "tensors (c, h, w) or (n, c, h, w), with 1 or 3 channels, grey images (n, h, w), "
            "or a list of grey images (h, w)"
        )
    if values.dtype == torch.uint8:
        return values
    low, high = values.min().item(), values.max().item()
    top = 1 if values.is_floating_point() or values.dtype == torch.bool else 255
    if not (low >= 0 and high <= top):
        raise ValueError(
            f"images has {values.dtype} from {low:g} to {high:g}; pass bytes from 0 to 255, or "
            "floats from 0 to 1 that are not normalised"
        )
    return (values.float() * (255 / top)).round().to(torch.uint8)
