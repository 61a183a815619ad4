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

from flatnce.messages import check_at_least, html_card
from flatnce.pretrain.data.image_set import available_cores, centre_square, read_image
from flatnce.pretrain.data.readers import image_files
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.evaluation.features import to_channels
from flatnce.pretrain.exporting import load_exported, open_graph, preprocessing
from flatnce.pretrain.exporting.forms import MARK, is_described, read_config
from flatnce.pretrain.runs.folder import find_run, run_name, runs_folder
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import load_encoder

__all__ = ["Embedder", "load"]

KINDS = (
    "paths of files, a folder, numpy arrays, tensors, images of Pillow, or a list of such images"
)


@dataclass(frozen=True, eq=False)
class Embedder:
    """A trained backbone, without its projection head, and what it does to images before."""

    name: str  #: Of the run or the exported folder.
    step: int  #: Steps of training.
    width: int  #: Numbers per embedding.
    network: Callable[[Tensor], Tensor] = field(repr=False)  #: Prepared images to embeddings.
    prepare: CentreCrop  #: Resizes, crops and normalises uint8 images.
    channels: int  #: That the network takes; other images are converted.
    device: torch.device  #: Where it computes.

    def _repr_html_(self) -> str:
        """The encoder in a notebook."""
        taken = f"{self.channels} × {self.prepare.size} × {self.prepare.size}"
        facts = {"images": taken, "embeddings": f"{self.width:,} numbers per image"}
        title = f"encoder of {self.name}, step {self.step:,}"
        return html_card(title, {**facts, "device": self.device})

    def embed(
        self,
        images: Any,
        *,
        batch_size: int = 256,
        normalize: bool = False,
        progress: bool = False,
    ) -> Float[Tensor, "n width"]:
        """Embed images; return one row per image, float32, on the CPU.

        The features are those that ``flatnce evaluate`` measures: the shorter side is resized to
        the size of training, and the centre square is used. Grey images become colour and colour
        images grey if the network needs it.

        Arguments:
            images: Paths of files, a folder (all images in it, sorted), numpy arrays (h, w),
                (h, w, c) or (n, h, w, c), tensors (c, h, w) or (n, c, h, w), images of Pillow, or
                a list of such images, of any sizes. Numbers are bytes, or floats from 0 to 1,
                which are rounded to 256 levels. Three dimensions without 1 or 3 channels are grey
                images (n, h, w).
            batch_size: Images per pass.
            normalize: Scale each row to length one.
            progress: Count the images on standard error.
        """
        check_at_least("batch_size", batch_size, 1)
        items, parts = _items(images), []
        with ThreadPoolExecutor(available_cores()) as pool, torch.no_grad():
            for start in range(0, len(items), batch_size):
                some = list(pool.map(self._pixels, items[start : start + batch_size]))
                alike = len({one.shape for one in some}) == 1
                batches = [torch.stack(some)] if alike else [one[None] for one in some]
                batches = [to_channels(one.to(self.device), self.channels) for one in batches]
                prepared = torch.cat(list(map(self.prepare, batches)))
                made = self.network(prepared).to("cpu", torch.float32)
                parts.append(nn.functional.normalize(made) if normalize else made)
                if progress:
                    done, n = start + len(some), len(items)
                    end = "\n" if done == n else ""
                    print(f"\rembedded {done:,} of {n:,} images", end=end, file=sys.stderr)
        return torch.cat(parts)

    def _pixels(self, source: Any) -> UInt8[Tensor, "c h w"]:
        """One image of a list."""
        if isinstance(source, str | Path):
            return read_image(str(Path(source).expanduser()), self.prepare.size)
        if hasattr(source, "convert"):  # an image of Pillow
            return centre_square(source.convert("RGB"), self.prepare.size)
        found = _array_images(source)
        if len(found) != 1:
            raise ValueError(f"images: an item of the list holds {len(found)} images, not one")
        return found[0]


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
    if folder is None:
        place = find_run(name)
        loaded = load_encoder(place, step, chosen)
        own = loaded.config.data.prepare
        shape = getattr(loaded.encoder.backbone, "input_shape", (loaded.channels, 1, 1))
        if loaded.ready and (own or len(shape) != 3):
            raise ValueError(
                f"name={str(name)!r} was trained on inputs that {own or loaded.config.data.data} "
                "prepares; call load_encoder(name).encoder.backbone of flatnce.pretrain with them"
            )
        mean, std = loaded.normalisation
        prepare, network = CentreCrop(loaded.size, mean=mean, std=std), loaded.encoder.backbone
        width = int(network.width)  # type: ignore[arg-type]  # torch types attributes so
        channels, title = loaded.channels, run_name(place)
        return Embedder(title, loaded.step, width, network, prepare, channels, chosen)
    if step is not None:
        raise ValueError(f"step={step} chooses a checkpoint of a run; {folder} is an export")
    config = read_config(folder)[MARK]
    if config["form"] == "onnx":
        chosen, graph = torch.device("cpu"), open_graph(folder)
    else:
        graph = load_exported(folder).to(chosen)
    channels, width = config["input"]["channels"], config["features"]
    prepare = preprocessing(folder)
    return Embedder(str(name), config["step"], width, graph, prepare, channels, chosen)


def _exported_folder(path: Path) -> Path | None:
    """The folder of an export; None if the path is not one."""
    for place in (path, runs_folder() / path):
        newest = place / "refs" / "main"  # the hub's cache of one model
        if newest.is_file():
            place = place / "snapshots" / newest.read_text(encoding="utf-8").strip()
        if is_described(place):
            return place
    return None


def _items(images: Any) -> Sequence[Any]:
    """The images to embed, one by one."""
    found = images
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        found = image_files(path) if path.is_dir() else [path]
    elif isinstance(images, np.ndarray | Tensor):
        found = list(_array_images(images))
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


def _array_images(array: Any) -> UInt8[Tensor, "n c h w"]:
    """Images of an array or a tensor, as bytes."""
    if isinstance(array, np.ndarray):
        last = array.ndim > 2 and array.shape[-1] in (1, 3)
        values = torch.from_numpy((np.moveaxis(array, -1, -3) if last else array).copy())
    elif isinstance(array, Tensor):
        values = array
    else:
        raise ValueError(f"images holds a {type(array).__name__}; pass {KINDS}")
    if values.ndim == 2 or (values.ndim == 3 and values.shape[0] not in (1, 3)):
        values = values.unsqueeze(-3)  # grey
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4 or values.shape[1] not in (1, 3) or not values.numel():
        raise ValueError(
            f"images has shape {tuple(array.shape)}; pass arrays (h, w), (h, w, c) or "
            "(n, h, w, c), tensors (c, h, w) or (n, c, h, w), with 1 or 3 channels"
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
