"""Coverage of the best estimate's interval for two normal columns, down to independence.

No critic is trained: the interval is that of the method that is chosen from the columns alone.
"""

import argparse
import math

import numpy as np

from flatnce.mi.best import best_estimate


def held(correlation: float, rows: int, seed: int) -> bool:
    """Whether the interval of one table holds the truth."""
    random = np.random.default_rng([seed, rows, int(100 * correlation)])
    x, noise = random.normal(size=(2, rows, 1))
    found = best_estimate(x, correlation * x + math.sqrt(1 - correlation**2) * noise)
    return found.low <= -math.log1p(-(correlation**2)) / 2 <= found.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=400, help="tables for each number")
    tables = parser.parse_args().tables
    for rows in (200, 1000):
        for correlation in (0.0, 0.1, 0.2, 0.5, 0.8):
            count = sum(held(correlation, rows, seed) for seed in range(tables))
            print(f"n = {rows}, correlation {correlation}: {count} of {tables}", flush=True)


if __name__ == "__main__":
    main()
