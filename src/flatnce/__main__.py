"""``python -m flatnce``: the same as the ``flatnce`` command."""

import sys

from flatnce.cli import main

if __name__ == "__main__":
    sys.exit(main())
