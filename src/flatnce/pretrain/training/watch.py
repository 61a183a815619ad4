"""Measurements during training that need more than a batch: kNN and large-pool information.

Neither uses the test set. The kNN classifies a held-out tenth of the labelled training images by
the others. The images are fixed, so that the curves change only with the encoder.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flatnce.core.diagnostics import pool_information
from flatnce.pretrain.data import holdout, permutation
from flatnce.pretrain.data.own_set import AnySet
from flatnce.pretrain.evaluation import embed_views, extract, knn_predict
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import Images
from flatnce.pretrain.training.learner import Learner

# Enough to resolve a point of accuracy, few enough not to delay training.
MOST_MEMORY, MOST_QUERIES = 20_000, 5_000
HELD_OUT = 0.1
UNSEEN_VIEWS = 2**33
# An eighth as many other pairs choose the scale at which the pool is read.
CALIBRATION_SHARE, LEAST_CALIBRATION = 8, 64


class Watcher:
    """Measures a learner on fixed images of its training set."""

    def __init__(self, config: TrainConfig, images: Images) -> None:
        self.config, self.images = config, images
        source, seed = images.image_set, config.run.seed
        labels = source.labels.cpu()
        self.memory, self.queries = None, None
        counts = torch.bincount(labels[labels >= 0], minlength=1)
        enough = counts[labels.clamp_min(0)] >= 1 / HELD_OUT  # of its class, to hold one out
        labelled = ((labels >= 0) & enough).nonzero().squeeze(1)
        if len(labelled) and int(labels[labelled].max()) > int(labels[labelled].min()):
            rest, held = holdout(labels[labelled], HELD_OUT, seed)
            self.memory = self._some(labelled[rest], MOST_MEMORY)
            self.queries = self._some(labelled[held], MOST_QUERIES)
        most = min(len(source) * CALIBRATION_SHARE // (CALIBRATION_SHARE + 1), len(source) - 2)
        self.pool = min(config.watch.pool, most)
        self.calibration = max(self.pool // CALIBRATION_SHARE, 2)
        chosen = permutation(len(source), seed)[: self.pool + self.calibration]
        self.pooled = source.subset(chosen)

    @torch.no_grad()
    def __call__(self, learner: Learner) -> dict[str, float | int]:
        """Measure the learner."""
        found: dict[str, float | int] = {}
        if self.memory is not None and self.queries is not None:
            net, views = learner.encoder.backbone, self.images.views
            options: dict[str, Any] = {"size": views.size, "mean": views.mean, "std": views.std}
            options["workers"] = self.config.data.workers
            known = extract(net, self.memory, **options)
            asked = extract(net, self.queries, **options)
            k = min(self.config.watch.knn_neighbours, len(known))
            right = knn_predict(known, asked.features, k) == asked.labels
            found["knn"] = float(right.float().mean())
        return found | self._pool(learner)

    def _pool(self, learner: Learner) -> dict[str, float | int]:
        if self.pool < 2:  # of fewer than four images
            return {}
        # A separate seed: views that no epoch has drawn, and always the same.
        views = replace(self.images.views, seed=UNSEEN_VIEWS + self.config.run.seed)
        workers, channels = self.config.data.workers, self.images.example.shape[1]
        z1, z2 = embed_views(learner.encoder, self.pooled, views, channels, workers)
        read, other = slice(0, self.pool), slice(self.pool, None)
        temperature = float(learner.objective.temperature)
        found = pool_information(
            z1[read], z2[read], temperature, calibration=(z1[other], z2[other])
        )
        if self.calibration < LEAST_CALIBRATION:  # too few to choose a scale
            found["pool_mi"] = found["pool_mi_at_temperature"]
            found["pool_scale"] = 1 / temperature
        return found

    def _some(self, numbers: Tensor, most: int) -> AnySet:
        chosen = numbers[permutation(len(numbers), self.config.run.seed)[:most]]
        return self.images.image_set.subset(chosen.sort().values)
