"""The operations behind :class:`flatnce.pretrain.data.views.Views`: random numbers, boxes, filters, colour.

Pixels are held as *planes*, float32 of shape (c, n, y, x) with values in [0, 1]: the channel comes
first, so that a channel of the whole batch is one contiguous block. ``n`` counts views, image
after image; a per-view number has shape (n, 1, 1) and meets planes by broadcasting.

Every view's pixels are the same bits whatever else is in the batch. Two rules see to that: random
numbers are a function of a key, never of a state (:mod:`~flatnce.pretrain.data.augmentation.draws`), and
every sum over pixels is exact, so that its order does not matter
(:mod:`~flatnce.pretrain.data.augmentation.separable`).
"""

__all__: list[str] = []
