"""Where things are in the checkout."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
