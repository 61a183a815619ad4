"""Whole experiments: the demo, the figures and tables of the paper, and what training costs."""
