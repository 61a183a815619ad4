"""Write ``src/flatnce/mi/sample.csv``, the table of ``flatnce mi sample``; its head has the law.

python tests/make_sample.py
"""

import math

import numpy as np

from paths import ROOT

SAMPLE = ROOT / "src" / "flatnce" / "mi" / "sample.csv"
TRUTH = math.log(2) / 2
ROWS, SEED = 2_000, 0
HEAD = """\
# An invented population: 2,000 rows, seed 0, by tests/make_sample.py.
# height is normal with mean 170 and standard deviation 10 (cm). weight is 70 + 0.9 (height - 170)
# and normal noise of standard deviation 8 (kg). log(income) is log(30000) + 0.02 (height - 170)
# + 0.01 (weight - 70) and normal noise of the same variance as that sum. So height and weight
# say log(2) / 2 = 0.347 nats about income.
height,weight,income
"""


def text() -> str:
    """The content of the file."""
    random = np.random.default_rng(SEED)
    tall, wide, luck = random.standard_normal((3, ROWS)) * [[10], [8], [1]]
    wide = wide + 0.9 * tall
    signal = 0.02 * tall + 0.01 * wide
    spread = math.hypot((0.02 + 0.01 * 0.9) * 10, 0.01 * 8)  # of the signal
    income = 30_000 * np.exp(signal + spread * luck)
    columns = zip(170 + tall, 70 + wide, income, strict=True)
    return HEAD + "".join(f"{h:.2f},{w:.2f},{i:.0f}\n" for h, w, i in columns)


if __name__ == "__main__":
    SAMPLE.write_text(text(), encoding="utf-8", newline="\n")
