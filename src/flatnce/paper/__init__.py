"""Whole experiments as functions: the demo here, the paper's own later."""

__all__: list[str] = []
