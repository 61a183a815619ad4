"""The examples without a host library run from top to bottom."""

import runpy

import pytest

from paths import ROOT


@pytest.fixture(scope="module")
def cifar10():
    return runpy.run_path(str(ROOT / "examples" / "cifar10.py"))


def test_cifar10_learns_on_digits(cifar10, capsys):
    arguments = "--data digits --backbone small --epochs 2 --batch-size 64".split()
    accuracy = cifar10["main"](cifar10["parser"].parse_args(arguments))
    assert accuracy > 0.9
    printed = capsys.readouterr().out
    assert "epoch   2" in printed and "kNN (k = 20)" in printed


def test_cifar10_is_short_and_uses_public_names_only(cifar10):
    text = (ROOT / "examples" / "cifar10.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    origins = {line.split()[1] for line in text.splitlines() if line.startswith("from flatnce")}
    assert origins == {"flatnce", "flatnce.pretrain"}
