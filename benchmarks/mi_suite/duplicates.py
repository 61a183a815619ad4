"""How often ordinary surveys are reported as duplicated, and whether planted copies are found.

    python benchmarks/mi_suite/duplicates.py                 counts, about a minute
    python benchmarks/mi_suite/duplicates.py --out FILE      also writes them

The rows of every table are independent draws, so equal rows are equal by chance. A table with
planted copies repeats some of its rows at the end, in every column of both sides.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from flatnce.mi.cleaning import clean

ROWS = (200, 720, 3000)
TABLES = 100  # of each kind and number of rows
SHARES = (0.02, 0.2, 1.0)  # of the rows that are copied


def one_hot(codes):
    """A column of zeros and ones per category."""
    return (codes[:, None] == np.unique(codes)).astype(float)


def columns(*sides):
    return np.column_stack(sides).astype(float)


def age_and_income(random, n):
    """Age in years, years of education, income rounded to 100; sex."""
    age, sex = random.integers(18, 80, n), random.integers(0, 2, n)
    education = np.clip(np.round(random.normal(12, 3, n)), 6, 20)
    income = np.round(np.exp(random.normal(9.4 + 0.08 * education, 0.6)), -2)
    return columns(age, education, income), columns(sex)


def city_and_income(random, n):
    """A city of eight as zeros and ones; income in thousands with three decimals."""
    city = random.choice(8, n, p=np.array([8, 5, 3, 2, 2, 1, 1, 1]) / 23)
    return one_hot(city), columns(np.round(np.exp(random.normal(3.4 + 0.1 * city, 0.5)), 3))


def city_and_log_income(random, n):
    """A city of thirty as zeros and ones; the logarithm of income with three decimals."""
    city = random.integers(0, 30, n)
    return one_hot(city), columns(np.round(random.normal(10 + 0.02 * city, 0.15), 3))


def salary_bands(random, n):
    """A job of twelve as zeros and ones, and years in it; pay by the table, plus a bonus."""
    job, years = random.integers(0, 12, n), random.integers(0, 15, n)
    bonus = random.choice([0, 250, 500], n, p=[0.7, 0.2, 0.1])
    return columns(one_hot(job), years), columns(1800 + 150 * job + 40 * years + bonus)


def answers(random, n):
    """Six answers from 1 to 5 with a common cause; their mean of six others."""
    cause = random.normal(size=(n, 1))
    given = np.clip(np.round(3 + 0.8 * cause + random.normal(0, 0.8, (n, 12))), 1, 5)
    return given[:, :6], columns(given[:, 6:].mean(axis=1).round(3))


def body(random, n):
    """Height in cm, weight in kg and their ratio with one decimal; blood pressure in mmHg."""
    height = random.normal(170, 9, n).round()
    weight = (0.9 * (height - 100) + random.normal(0, 9, n)).round()
    pressure = np.stack((random.normal(125, 15, n), random.normal(80, 10, n)), axis=1).round()
    return columns(height, weight, (weight / (height / 100) ** 2).round(1)), pressure


def visits(random, n):
    """Children, visits and a smoker's cigarettes; costs with two decimals, mostly 0."""
    children, seen = random.poisson(1.4, n), random.poisson(2, n)
    smoked = random.choice([0, 5, 10, 20], n, p=[0.8, 0.05, 0.1, 0.05])
    costs = np.where(random.random(n) < 0.6, 0, np.round(np.exp(random.normal(3, 1, n)), 2))
    return columns(children, seen, smoked), columns(costs)


def heaped(random, n):
    """Age, a region of five as zeros and ones; income that most people round to thousands."""
    age, region = random.integers(18, 70, n), random.integers(0, 5, n)
    income = np.exp(random.normal(10.3, 0.5, n))
    coarse = np.where(random.random(n) < 0.7, np.round(income, -3), np.round(income, -1))
    return columns(age, one_hot(region)), columns(coarse)


def checklist(random, n):
    """Twelve symptoms, yes or no, that come together; age and a score with one decimal."""
    ill = random.random((n, 1)) < 0.3
    symptoms = random.random((n, 12)) < np.where(ill, 0.5, 0.08)
    return columns(symptoms), columns(
        random.integers(20, 80, n), (10 * random.beta(2, 5, n)).round(1)
    )


def places(random, n):
    """A town's two coordinates and population; rent rounded to 10, and rooms."""
    towns = np.column_stack(
        (random.normal(50, 2, 25), random.normal(10, 3, 25), random.integers(1000, 900000, 25))
    )
    town, rooms = random.integers(0, 25, n), random.integers(1, 6, n)
    rent = np.round(200 * rooms + 20 * town + random.normal(0, 80, n), -1)
    return towns[town].round(4), columns(rent, rooms)


def questionnaire(random, n):
    """Age, sex, a region of five and ten answers; income with two decimals."""
    cause, region = random.normal(size=(n, 1)), random.integers(0, 5, n)
    given = np.clip(np.round(3 + 0.8 * cause + random.normal(0, 0.8, (n, 10))), 1, 5)
    age, sex = random.integers(18, 80, n), random.integers(0, 2, n)
    income = np.exp(random.normal(7.5, 0.5, n)).round(2)
    return columns(age, sex, one_hot(region), given), columns(income)


KINDS = (
    age_and_income,
    city_and_income,
    city_and_log_income,
    salary_bands,
    answers,
    body,
    visits,
    heaped,
    checklist,
    places,
    questionnaire,
)


def count(kind, n, tables):
    """Alarms in independent tables, and tables with copies that were found, by copied share.

    An alarm is the flag `duplicates` (copies of whole rows) or `repeats` (of one side).
    """
    alarms, found = 0, dict.fromkeys(SHARES, 0)
    for seed in range(tables):
        random = np.random.default_rng([seed, n, KINDS.index(kind)])
        x, y = kind(random, n)
        checked = clean(x, y)
        alarms += checked.duplicates is not None or bool(checked.repeated)
        if seed < tables // 10:
            for share in SHARES:
                copied = random.permutation(n)[: max(int(share * n), 4)]
                sides = (np.concatenate((side, side[copied])) for side in (x, y))
                found[share] += clean(*sides).duplicates is not None
    planted = {f"{share:.0%}": number for share, number in found.items()}
    return {"kind": kind.__name__, "rows": n, "tables": tables, "alarms": alarms} | {
        "planted": tables // 10,
        "found": planted,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=int, default=TABLES)
    options = parser.parse_args()
    records = [count(kind, n, options.tables) for kind in KINDS for n in ROWS]
    for record in records:
        found = ", ".join(f"{share} {number}" for share, number in record["found"].items())
        print(
            f"{record['kind']:<20} {record['rows']:>5} rows: {record['alarms']:>3} alarms in "
            f"{record['tables']} tables; of {record['planted']} with copies found: {found}"
        )
    alarms = sum(record["alarms"] for record in records)
    tables = sum(record["tables"] for record in records)
    print(f"all: {alarms} alarms in {tables} independent tables ({alarms / tables:.2%})")
    if options.out is not None:
        options.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
