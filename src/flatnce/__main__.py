"""``python -m flatnce``: the same as the ``flatnce`` command."""

import sys

from flatnce.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
