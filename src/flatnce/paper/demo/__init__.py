"""``flatnce demo``: InfoNCE against FlatNCE on pairs of known mutual information."""
