"""``flatnce reproduce``: the paper's experiments as data, and the engine that runs them."""
