"""The short form of ``benchmarks/trust/fuzz.py``: readers raise only errors of ours."""

import importlib.util
import sys

from paths import ROOT


def test_mutated_files_give_an_error_of_ours(tmp_path):
    place = ROOT / "benchmarks" / "trust" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", place)
    fuzz = sys.modules["fuzz"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    # The page of a run takes a tenth of a second; the whole program reads it too.
    subjects = tuple(one for one in fuzz.SUBJECTS if one.name != "run page")
    with fuzz.narrow_network():
        fuzzer = fuzz.Fuzzer(tmp_path, subjects)
        found = {number: fuzzer.take(number) for number in range(200)}
    assert {n: (path, said) for n, (_, path, said) in found.items() if said} == {}
    assert {subject.name for subject, _, _ in found.values()} == {one.name for one in subjects}
