"""The commands on the pages about mutual information print what the pages say they print."""

import math
import re
import shlex

import numpy as np
import pytest

from flatnce.cli import main
from paths import ROOT

pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")

DOCS = ROOT / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n\$ flatnce (.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TIMES = re.compile(r".*\bseconds?\b.*\n?")


def commands(name):
    """Each command of a page that shows what it prints."""
    found = CONSOLE.findall((DOCS / name).read_text(encoding="utf-8"))
    return [pytest.param(name, *each, id=f"{name}-{each[0][:60]}") for each in found if each[1]]


def words_and_numbers(text):
    """What is said, with a place for each number; and the numbers."""
    lines = "\n".join(" ".join(line.split()) for line in TIMES.sub("", text).strip().splitlines())
    lines = re.sub(r"\bp [<=] ", "p = ", lines)
    return NUMBER.sub("#", lines), [float(one.replace(",", "")) for one in NUMBER.findall(lines)]


@pytest.mark.slow  # the pages' Python runs in every test run; this trains it all once more
@pytest.mark.parametrize(
    "page, typed, printed",
    [*commands("mutual-information-tutorial.md"), *commands("mutual-information.md")],
)
def test_the_command_prints_what_the_page_shows(
    page, typed, printed, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    # The first block of a page writes the file that its commands read.
    exec(PYTHON.search((DOCS / page).read_text(encoding="utf-8"))[1], {})
    main(shlex.split(typed))
    shown = capsys.readouterr()
    words, numbers = words_and_numbers(printed)
    found_words, found_numbers = words_and_numbers(shown.out + shown.err)
    assert found_words == words
    # Other processors and versions of torch round differently, and training carries that on: by
    # hundredths of a nat, and so by a factor in numbers below that.
    for found, wanted in zip(found_numbers, numbers, strict=True):
        assert found == pytest.approx(wanted, abs=0.04 if wanted >= 0.1 else 0.015, rel=0.1)


def test_the_comparison_sees_another_number_and_another_word():
    assert words_and_numbers("I ≥ 0.38, p < 0.001")[1] == [0.38, 0.001]
    assert words_and_numbers("a 1\nin 3 seconds\nb")[0] == "a #\nb"


def test_the_true_value_of_the_first_example_is_that_of_its_distribution():
    """The mass and the last column say nothing more; the density is a sum over heights."""
    heights = np.geomspace(1e-8, 8, 1_000)
    heights = np.concatenate([-heights[::-1], heights])
    prior = np.exp(-(heights**2) / 2) / math.sqrt(2 * math.pi) * np.gradient(heights)

    def density(height, first, second):
        """Of both columns given the height, without a common factor."""
        exponent = ((first - np.tanh(height)) / 0.2) ** 2 + (second / height) ** 2
        return np.exp(-exponent / 2) / np.abs(height)

    height, *noise = np.random.default_rng(0).standard_normal((3, 40_000, 1))
    first, second = np.tanh(height) + 0.2 * noise[0], height * noise[1]
    given, whole = density(height, first, second)[:, 0], np.empty(len(height))
    for rows in np.array_split(np.arange(len(height)), 80):
        whole[rows] = density(heights, first[rows], second[rows]) @ prior
    page = (DOCS / "mutual-information.md").read_text(encoding="utf-8")
    shown = re.search(r"the true value is (\S+) nats", page)
    assert shown and float(shown[1]) == pytest.approx(np.log(given / whole).mean(), abs=0.012)
