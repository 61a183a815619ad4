"""Training of several runs side by side. See :func:`flatnce.pretrain.sweep`."""
