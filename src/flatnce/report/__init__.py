"""Pages that explain runs. Reads run directories only; imports no torch."""

from flatnce.report.demo import demo_page

__all__ = ["demo_page"]
