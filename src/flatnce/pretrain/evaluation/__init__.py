"""How good an encoder is: kNN, linear probes, fine-tuning, transfer, few labels, information.

:func:`extract` makes features once, with the network frozen; :func:`knn_scores`,
:func:`linear_probe`, :func:`probe_by_descent` and :func:`finetune` classify with them;
:data:`PROTOCOLS` put these together as papers do. Choices are made on held-out training samples,
never on the test set, and every result says how it came about.
Names are imported on first access.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.pretrain.evaluation.features import Features as Features
    from flatnce.pretrain.evaluation.features import embed_views as embed_views
    from flatnce.pretrain.evaluation.features import extract as extract
    from flatnce.pretrain.evaluation.finetuning import FinetuneConfig as FinetuneConfig
    from flatnce.pretrain.evaluation.finetuning import finetune as finetune
    from flatnce.pretrain.evaluation.knn import knn_predict as knn_predict
    from flatnce.pretrain.evaluation.knn import knn_scores as knn_scores
    from flatnce.pretrain.evaluation.metrics import measure as measure
    from flatnce.pretrain.evaluation.options import PURPOSES as PURPOSES
    from flatnce.pretrain.evaluation.options import Options as Options
    from flatnce.pretrain.evaluation.options import expand as expand
    from flatnce.pretrain.evaluation.options import refuse_unused as refuse_unused
    from flatnce.pretrain.evaluation.probe import FORMS as FORMS
    from flatnce.pretrain.evaluation.probe import DescentConfig as DescentConfig
    from flatnce.pretrain.evaluation.probe import Probe as Probe
    from flatnce.pretrain.evaluation.probe import linear_probe as linear_probe
    from flatnce.pretrain.evaluation.probe import probe_by_descent as probe_by_descent
    from flatnce.pretrain.evaluation.protocols import PROTOCOLS as PROTOCOLS
    from flatnce.pretrain.evaluation.protocols import Bench as Bench
    from flatnce.pretrain.evaluation.protocols import NotSaved as NotSaved
    from flatnce.pretrain.evaluation.protocols import evaluate_run as evaluate_run
    from flatnce.pretrain.evaluation.protocols import missing_sets as missing_sets

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
