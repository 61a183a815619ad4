"""Six real tables: the commands that a user would run, and their output.

    python benchmarks/mi_suite/real_tables.py --penguins FILE --weather FILE --out FOLDER

Wine, diabetes, breast cancer and digits are scikit-learn's. Penguins is `penguins.csv` of
https://github.com/mwaskom/seaborn-data, weather is `data/seattle-weather.csv` of
https://github.com/vega/vega-datasets; without their files they are left out. The folder gets the
tables, the pages and real_tables.json with all outputs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from sklearn import datasets

OWN = ("wine", "diabetes", "breast_cancer", "digits")
BODY = "bill_length_mm:body_mass_g"
COMMANDS = (
    f"mi penguins.csv --x {BODY} --y species",
    f"mi penguins.csv --x {BODY} --y species --independent --report penguins.html",
    f"mi penguins.csv --x {BODY},species,sex --pairwise --independent --report pairs.html",
    "mi wine.csv --y target --cv 5 --report wine.html",
    "mi diabetes.csv --y target --report diabetes.html",
    "mi diabetes.csv --y target --rank --report diabetes-rank.html",
    "mi breast_cancer.csv --y target --report cancer.html",
    "mi digits.csv --y target --independent --report digits.html",
    "mi weather.csv --x temp_max,temp_min --y precipitation",
    "mi weather.csv --x temp_max,temp_min --y precipitation --block auto --report weather.html",
    "mi weather.csv --x precipitation --y wind --lags -3..3 --block auto --report lags.html",
)


def run(typed, folder):
    """Run one command in an 80-column terminal and record what it prints."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flatnce", *shlex.split(typed)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    print(f"$ flatnce {typed}\n{done.stdout}{done.stderr}", flush=True)
    return {"command": f"flatnce {typed}", "output": done.stdout + done.stderr} | {
        "seconds": round(seconds, 1)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penguins", type=Path)
    parser.add_argument("--weather", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        table = getattr(datasets, f"load_{name}")(as_frame=True).frame
        table.to_csv(options.out / f"{name}.csv", index=False)
    for name in ("penguins", "weather"):
        if getattr(options, name) is not None:
            (options.out / f"{name}.csv").write_bytes(getattr(options, name).read_bytes())
    there = [typed for typed in COMMANDS if (options.out / typed.split()[1]).exists()]
    records = []
    for typed in there:
        records.append(run(typed, options.out))
        file = options.out / "real_tables.json"
        file.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
