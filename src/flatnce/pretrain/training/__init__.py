"""Training of one run: config, learner, step, loop, run directory. See :mod:`flatnce.pretrain`."""
