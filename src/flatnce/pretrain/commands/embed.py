"""``flatnce embed``: embed a folder of images by a trained encoder."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from flatnce.cli.console import print_json
from flatnce.cli.options import parse_options
from flatnce.files import naming_file
from flatnce.messages import say
from flatnce.pretrain.commands import RunName, Switch


@dataclass(frozen=True)
class EmbedOptions:
    """Embed every image of a folder, and write embeddings, file names and labels as .npz."""

    run: RunName  # A run's name or folder, or a folder that `flatnce export` wrote.
    # The images; with a folder per class the file also holds labels.
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    out: Path = Path("embeddings.npz")  # The file to write.
    normalize: Switch = False  # Scale each embedding to length one.
    step: int | None = None  # Which checkpoint; the newest by default.
    device: str = "auto"  # auto, cpu, cuda or cuda:1.
    batch_size: int = 256  # Images per pass.
    skip_unreadable: Switch = False  # Skip files that cannot be decoded, with a warning.
    replace: Switch = False  # Replace an earlier file.
    json: Switch = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(EmbedOptions, "embed", arguments, renamed={"name": ""})
    out, folder, typed = options.out, Path(options.folder).expanduser(), options.folder
    if not folder.is_dir():
        single = f"in Python, flatnce.load({options.run!r}).embed({typed!r}) takes one image"
        remedy = single if folder.is_file() else "name one that exists"
        raise ValueError(f"{typed} is not a folder of images; {remedy}")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    if out.suffix != ".npz" or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ValueError(f"--out {out} must be a file .npz in a folder that can be written")
    if out.exists() and not options.replace:
        raise ValueError(f"--out {out} already exists; name another file, or --replace it")
    # These import torch.
    import numpy as np
    import torch

    from flatnce.pretrain.data import FolderSet
    from flatnce.pretrain.data.readers import has_part, image_files
    from flatnce.pretrain.embedding import load

    files = image_files(folder)
    if not files:
        raise ValueError(f"{typed} holds no image")
    if options.skip_unreadable:
        unknown = torch.full((len(files),), -1)
        files = list(FolderSet(tuple(files), unknown, (), typed).readable().paths)
    names = [Path(file).relative_to(folder) for file in files]
    # photos/cat/1.jpg, or photos/test/cat/1.jpg
    depth = int(has_part(folder, "test") or (folder / "train").is_dir())
    labelled = all(len(name.parts) > depth + 1 for name in names)
    classes = sorted({name.parts[depth] for name in names}) if labelled else []
    encoder = load(options.run, step=options.step, device=options.device)
    how: Any = {"batch_size": options.batch_size, "normalize": options.normalize}
    made = encoder.embed(files, **how, progress=sys.stderr.isatty())
    arrays: dict[str, Any] = {"embeddings": made.numpy(), "files": np.array(list(map(str, names)))}
    if classes:
        labels = [classes.index(name.parts[depth]) for name in names]
        arrays |= {"labels": np.array(labels), "classes": np.array(classes)}
    with naming_file(out):
        np.savez(out, **arrays)
    shapes = {name: array.shape for name, array in arrays.items()}
    found = {"out": out, "run": encoder.name, "step": encoder.step, "arrays": shapes}
    if options.json:
        print_json(found)
        return 0
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    say(f"{len(files):,} images by {encoder.name} at step {encoder.step:,}: {out} ({listed})")
    return 0
