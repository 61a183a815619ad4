"""A table in plain text: names to the left, numbers to the right."""

from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Rows under a header, in columns.

    Arguments:
        header: Of each column.
        rows: Cells as they are to be shown.
        names: How many of the first columns are names, set to the left.

    Examples:
        >>> print(aligned(["a", "n"], [["x", "1"], ["long", "22"]]))
        a      n
        x      1
        long  22
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < names else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
