"""Pretrain on tar shards in webdataset's layout, by one process or several.

    python examples/tar_shards.py 'shards/train-{000..009}.tar' runs/shards
    torchrun --nproc-per-node 2 examples/tar_shards.py 'shards/train-{000..009}.tar' runs/shards

Each process reads its share of every batch from the shards. Started again, a run that was stopped
goes on from its last checkpoint, exactly.
"""

import os
import sys
from pathlib import Path

from flatnce.pretrain import preset, resume, train


def main(shards, directory, **settings):
    config = preset("folder").override(
        data=shards,  # 000017.jpg and its class 000017.cls, of which training does not know
        backbone="small",
        view_size=32,
        decode_size=32,
        batch_size=16,
        epochs=2,
        **settings,
    )
    if (Path(directory) / "config.json").is_file():
        outcome = resume(directory)
    else:
        outcome = train(config, directory)
    if os.environ.get("RANK", "0") == "0":  # the first process, or the only one
        print(f"{outcome.step} steps; the run is in {outcome.directory}")


if __name__ == "__main__":
    main(*sys.argv[1:])
