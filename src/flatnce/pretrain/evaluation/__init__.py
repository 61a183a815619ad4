"""How good an encoder is: kNN, linear probes, fine-tuning, transfer, few labels, information.

:func:`extract` makes features once, with the network frozen; :func:`knn_scores`,
:func:`linear_probe`, :func:`probe_by_descent` and :func:`finetune` classify with them;
:data:`PROTOCOLS` put these together as papers do. Choices are made on held-out training samples,
never on the test set, and every result says how it came about.
Names are imported on first access.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.pretrain.evaluation.features import Features, embed_views, extract, frozen
    from flatnce.pretrain.evaluation.finetuning import FinetuneConfig, finetune
    from flatnce.pretrain.evaluation.knn import knn_predict, knn_scores
    from flatnce.pretrain.evaluation.metrics import measure
    from flatnce.pretrain.evaluation.options import PURPOSES, Options, expand
    from flatnce.pretrain.evaluation.probe import (
        FORMS,
        DescentConfig,
        Probe,
        linear_probe,
        probe_by_descent,
    )
    from flatnce.pretrain.evaluation.protocols import (
        PROTOCOLS,
        TRANSFER_SETS,
        Bench,
        NotSaved,
        evaluate_run,
        missing_sets,
    )

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
