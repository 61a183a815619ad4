"""Who is whose positive, and who is left out: the only place that knows, and that gathers.

Every layout normalises rows (unless told not to), checks its arguments, gathers keys over
processes on request, and returns :class:`Pairs`: local anchors, all keys, and a
:class:`~flatnce.core.selection.Selection` in place of an n by m mask.

Options shared by the layouts:
    ids: One integer a sample. Samples that share an id (duplicates, several captions of one
        image, a key still in the queue) are never each other's negatives.
    false_negatives: Boolean (b, b) mask over samples: entry [i, j] leaves sample j out of
        sample i's negatives. When gathering, (b, world * b): local samples by all samples.
    negatives: Hard negatives: (h, d) shared by all anchors, or (b, h, d) each sample's own.
    gather: Contrast local anchors with the keys of every process, differentiably.
"""

from flatnce.core.pairs.labels import labelled
from flatnce.core.pairs.layouts import multi_view, two_tower, two_view
from flatnce.core.pairs.queue import KeyQueue, with_queue
from flatnce.core.pairs.record import Form, Pairs

__all__ = [
    "Form",
    "KeyQueue",
    "Pairs",
    "labelled",
    "multi_view",
    "two_tower",
    "two_view",
    "with_queue",
]
