"""Pages that explain runs. Reads run directories only; imports no torch."""

from flatnce.report.compare import compare_page
from flatnce.report.demo import demo_page
from flatnce.report.reproduce import reproduce_page
from flatnce.report.run import run_page

__all__ = ["compare_page", "demo_page", "reproduce_page", "run_page"]
