"""The doctor on embeddings: what it finds, what it says, and what it refuses."""

import io
import json
import math
import re
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import flatnce
from flatnce.diagnose import doctor, embeddings, read_embeddings
from flatnce.diagnose.embeddings import MOST_SEARCHED, MOST_TOGETHER, Case, record_of
from flatnce.integrations.open_clip import FlatClipLoss
from forked import run_forked


def pair(n=128, d=128, cosine=0.5):
    """Unit rows at a cosine from each other."""
    z = normalize(torch.randn(n, d), dim=1)
    noise = torch.randn(n, d)
    across = normalize(noise - (noise * z).sum(dim=1, keepdim=True) * z, dim=1)
    return z, cosine * z + math.sqrt(1 - cosine**2) * across


def cone():
    centre = torch.randn(1, 64)
    return tuple(centre + 0.05 * torch.randn(128, 64) for _ in range(2))


def subspace():
    inside, basis = torch.randn(128, 3), torch.randn(3, 128)
    return inside @ basis, (inside + 0.3 * torch.randn(128, 3)) @ basis


def same():
    return pair()[:1] * 2


def independent():
    return torch.randn(128, 64), torch.randn(128, 64)


def broken():
    return torch.full((4, 8), math.nan), torch.ones(4, 8)


# Embeddings, arguments, kinds of all findings, words in the evidence of the first.
CASES = {
    "healthy": (pair, {}, (), ""),
    "a cone": (cone, {}, ("collapsed",), "uniformity"),
    "three directions": (subspace, {"temperature": 0.3}, ("dimensional collapse",), "of 128"),
    "one tensor twice": (same, {"temperature": 0.3}, ("identical views",), "100%"),
    "independent views": (independent, {"temperature": 0.2}, ("not learning",), "MI"),
    "healthy in small towers": (pair, {"layout": "two_tower"}, (), ""),
    "nothing but broken rows": (broken, {}, ("broken rows",), "4 of 4"),
    "many in the batch": (partial(pair, cosine=0.4), {"temperature": 0.2}, (), ""),
    "four in a batch": (
        partial(pair, cosine=0.4),
        {"temperature": 0.2, "batch_size": 4},
        ("too few negatives",),
        "6 negatives",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_embeddings_have_exactly_the_findings_that_are_true_of_them(case):
    made, options, kinds, words = CASES[case]
    found = doctor(*made(), **{"temperature": 0.1, **options})
    assert found.kinds == kinds
    assert not kinds or words in found.findings[0].evidence
    said = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert said["verdict"] == found.verdict and found.verdict in str(found)


def test_saturation_is_named_with_its_remedy():
    found = doctor(*pair(cosine=0.9), temperature=0.1, objective="InfoNCE")
    assert found.kinds == ("saturated",)
    assert "InfoNCE scales" in found.findings[0].evidence
    assert "FlatNCE" in found.findings[0].remedies[0]


@pytest.mark.parametrize("collapsed", ["z1", "z2"])
def test_of_two_towers_either_can_be_collapsed_alone(collapsed):
    spread, cone = torch.randn(128, 64), torch.ones(128, 64) + 0.02 * torch.randn(128, 64)
    views = {"z1": spread, "z2": spread.clone()} | {collapsed: cone}
    found = doctor(**views, temperature=0.1, layout="two_tower")
    assert found.kinds == ("collapsed",)
    assert found.numbers["uniformity"] == found.numbers[f"uniformity_{collapsed}"]
    assert f"in {collapsed}" in found.findings[0].evidence


@pytest.mark.parametrize("n, d", [(96, 24), (24, 96)])
def test_the_geometry_is_that_of_a_monitor_whichever_side_is_longer(n, d):
    z1, z2 = pair(n, d)
    loss_fn, monitor = flatnce.InfoNCE(0.1), flatnce.Monitor(rows=n)
    loss_fn(z1, z2)
    monitor.update(loss_fn.last)
    theirs = monitor.compute(step=0)
    ours = record_of(Case(z1, z2, None, None, 0.1, n, "two_view", ""), 0.1)
    for key in ("uniformity", "effective_rank", "gain", "ess", "mi", "temperature"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-6)


def test_many_samples_without_a_batch_size_are_judged_by_some_and_it_is_said(monkeypatch):
    solve = Mock(wraps=embeddings.temperature_for_ess)
    monkeypatch.setattr(embeddings, "temperature_for_ess", solve)
    z1, z2 = pair(MOST_TOGETHER + 500, 16, 0.6)
    found = doctor(z1, z2, temperature=5.0)
    assert found.numbers["samples"] == MOST_TOGETHER + 500
    assert found.numbers["negatives"] == 2 * (MOST_TOGETHER - 1)
    assert any("2,048 drawn with a fixed seed" in reason for reason in found.unknown)
    assert [len(call.args[0].anchors) for call in solve.call_args_list] == [2 * MOST_SEARCHED]
    assert doctor(z1, z2, temperature=5.0).numbers == found.numbers
    given = doctor(z1, z2, temperature=5.0, batch_size=MOST_TOGETHER + 2)
    assert given.numbers["negatives"] == 2 * (MOST_TOGETHER + 1)
    assert not any("fixed seed" in reason for reason in given.unknown)


@pytest.mark.parametrize("objective", ["flatnce", "infonce", "dcl"])
def test_no_value_of_an_objective_is_shown_that_was_not_computed(objective):
    z1, z2 = pair()
    found = doctor(z1, z2, temperature=0.1, objective=objective).numbers
    loss = flatnce.InfoNCE(temperature=0.1)(z1, z2)
    assert found["loss"] == pytest.approx(float(loss)) and "objective_loss" not in found


def test_what_was_not_given_is_said():
    found = doctor(*pair(64, cosine=0.15))
    assert not any(kind.startswith("temperature") for kind in found.kinds)
    assert found.numbers["false_negative_rate"] is None
    batch, temperature, rate = found.unknown
    assert "the 64 samples" in batch and "126 negatives" in batch and "--batch-size" in batch
    assert "--temperature" in temperature and "false negatives" in rate


def test_duplicates_are_found_and_counted():
    (z1, z2), ids = pair(), torch.arange(128)
    for values in (z1, z2, ids):
        values[:20] = values[20:40].clone()
    found = doctor(z1, z2, temperature=0.1)
    assert found.kinds == ("duplicates",)
    assert found.numbers["twins_a_row"] == pytest.approx(40 / 128)
    rate = 40 / (128 * 127)  # every copy is a false negative
    assert found.numbers["false_negative_rate"] == pytest.approx(rate)
    assert f"false negatives {rate:.2%}" in str(found)
    assert doctor(z1, z2, temperature=0.1, ids=ids).verdict == "healthy"


@pytest.mark.parametrize("members", [2, 8])
def test_the_rate_of_false_negatives_is_estimated(members):
    groups = torch.arange(256) // members
    centre = normalize(torch.randn(256 // members, 128), dim=1)[groups]
    z1, z2 = (centre + 0.06 * torch.randn(256, 128) for _ in range(2))
    found = doctor(z1, z2, temperature=0.1)
    assert "false negatives" in found.kinds
    truth = (members - 1) / 255
    assert found.numbers["false_negative_rate"] == pytest.approx(truth, rel=0.3)


def test_labels_count_false_negatives_by_number_and_weight():
    labels = torch.arange(128) % 4
    centre = normalize(torch.randn(4, 128), dim=1)[labels]
    z1, z2 = (centre + 0.1 * torch.randn(128, 128) for _ in range(2))
    found = doctor(z1, z2, temperature=0.1, labels=labels)
    assert found.numbers["false_negative_rate_by_label"] == pytest.approx(31 / 127)
    assert found.numbers["false_negative_weight_by_label"] > 0.9
    assert "false negatives" in found.kinds


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_with_labels_one_rate_is_shown_which_is_counted(noise):
    z = torch.randn(64, 32)
    labels = np.arange(64) % 4
    found = doctor(z, z + noise * torch.randn(64, 32), temperature=0.1, labels=labels)
    assert found.numbers["false_negative_rate"] == pytest.approx(15 / 63)
    assert str(found).count("false negatives ") == 1 and "false negatives 23.81%" in str(found)
    assert not any("false negatives" in reason for reason in found.unknown)
    unknown = doctor(z, z + 0.1 * torch.randn(64, 32), temperature=0.1, labels=[-1] * 64)
    assert unknown.numbers["false_negative_rate"] == 0.0


@pytest.mark.parametrize("temperature, kind", [(3.0, "high"), (0.005, "low")])
def test_a_wrong_temperature_is_named_with_a_better_one(temperature, kind):
    for name, target in (("InfoNCE", 0.3), ("FlatNCE", 0.075)):
        found = doctor(*pair(cosine=0.6), temperature=temperature, objective=name)
        finding = next(one for one in found.findings if one.kind == f"temperature too {kind}")
        assert f"would give an ESS of {target}" in finding.evidence
        assert any(f"hold an ESS of {target} (" in remedy for remedy in finding.remedies)
    found = doctor(*pair(cosine=0.6), temperature=temperature, objective="SigLIP")
    finding = next(one for one in found.findings if one.kind == f"temperature too {kind}")
    assert any("learned scale" in remedy for remedy in finding.remedies)
    assert not any("EssController" in remedy for remedy in finding.remedies)


@pytest.mark.parametrize("temperature, way", [(3.0, "lower"), (0.005, "higher|raise")])
@pytest.mark.parametrize("objective", ["", "InfoNCE", "FlatNCE"])
def test_no_ess_target_is_proposed_for_two_towers(temperature, way, objective):
    options = {"layout": "two_tower", "objective": objective}
    found = doctor(*pair(cosine=0.6), temperature=temperature, **options)
    assert any(kind.startswith("temperature too") for kind in found.kinds)
    assert not re.search("EssController|an ESS of|CIFAR", " ".join(str(found).split()))
    assert "KeyQueue" not in str(found)  # two towers take no queue
    assert found.numbers["temperature_for_good_ess"] is None
    assert re.search(way, found.findings[-1].remedies[0])


def proposed(found):
    """All remedies, and the temperatures that the evidence proposes."""
    remedies = [remedy for one in found.findings for remedy in one.remedies]
    said = " ".join(one.evidence for one in found.findings)
    return remedies, [float(one) for one in re.findall(r"temperature (\S+) would give", said)]


@pytest.mark.parametrize("temperature", [0.005, 0.1, 0.5, 3.0])
@pytest.mark.parametrize("layout", ["two_view", "two_tower"])
@pytest.mark.parametrize("n", [2, 3, 16])
@pytest.mark.parametrize("objective", ["", "InfoNCE", "FlatNCE"])
def test_remedies_do_not_contradict_each_other(temperature, layout, n, objective):
    z = torch.randn(n, 32)
    options = {"temperature": temperature, "layout": layout, "objective": objective}
    found = doctor(z, z + 0.1, **options)
    remedies, better = proposed(found)
    ways = {
        way for way in ("raise", "lower") for one in remedies if one.startswith(f"{way} the t")
    }
    assert ways != {"raise", "lower"} and all(0.01 <= one <= 1 for one in better)
    assert not {"temperature too high", "temperature too low"} <= set(found.kinds)
    if objective == "FlatNCE":
        assert not any("use FlatNCE" in remedy for remedy in remedies)
    else:
        few = "too few negatives" in found.kinds
        assert any("use FlatNCE" in remedy for remedy in remedies) == few


def test_a_good_ess_out_of_reach_is_said():
    z = normalize(torch.randn(2, 32), dim=1)
    found = doctor(z, z + 0.01, temperature=0.1)
    assert "temperature too high" in found.kinds and not proposed(found)[1]
    assert "no temperature from 0.01 to 1 gives an ESS of 0.3" in found.findings[-1].evidence
    assert not any("temperature" in remedy for remedy in found.findings[-1].remedies)
    one_negative = doctor(z, z + 0.01, temperature=0.1, layout="two_tower")
    assert not any(kind.startswith("temperature") for kind in one_negative.kinds)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # imports of torch 2.11's compiler
def test_an_objective_may_be_the_loss_itself():
    z1, z2 = pair(64)
    named = doctor(z1, z2, temperature=0.07, objective="FlatNCE")
    controlled = flatnce.FlatNCE(flatnce.EssController(0.3, temperature_at_start=0.07))
    for loss_fn in (flatnce.FlatNCE(0.07), controlled):
        found = doctor(z1, z2, objective=loss_fn)
        assert found.numbers["temperature"] == pytest.approx(0.07) and found.kinds == named.kinds
        assert found.findings == named.findings and found.unknown == named.unknown
    given = doctor(z1, z2, temperature=0.3, objective=flatnce.FlatNCE(0.07))
    assert given.numbers["temperature"] == pytest.approx(0.3)
    compiled = doctor(z1, z2, objective=torch.compile(flatnce.FlatNCE(0.07)))
    assert compiled.plain() == doctor(z1, z2, objective=flatnce.FlatNCE(0.07)).plain()
    learned = doctor(z1, z2, objective=flatnce.SigLIP(0.07))
    assert learned.numbers["temperature"] == pytest.approx(0.07)
    assert not any("--temperature" in reason for reason in learned.unknown)
    without = [FlatClipLoss()]  # its scale is one of the model
    for held in (torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(3)), None, "0.1"):
        without.append(torch.nn.CrossEntropyLoss())
        without[-1].temperature = held
    for loss_fn in without:
        unknown = doctor(z1, z2, objective=loss_fn)
        assert any("--temperature" in reason for reason in unknown.unknown)
    code = """
import torch, flatnce
for wrong in (None, 3, flatnce.FlatNCE):
    try:
        flatnce.doctor(torch.randn(4, 8), torch.randn(4, 8), objective=wrong)
    except ValueError as error:
        print(error)
"""
    assert run_forked(code).count("is not an objective; pass a loss or its name") == 3


def test_broken_rows_are_named_and_the_rest_is_judged():
    z1, z2 = pair()
    z1[0], z2[1, 1], z1[2] = math.nan, math.inf, 0
    found = doctor(z1, z2, temperature=0.1)
    assert found.kinds == ("broken rows",)
    assert "3 of 128" in found.findings[0].evidence and found.numbers["samples"] == 125


@pytest.mark.parametrize(
    "change, words",
    [
        ({"z1": {"rows": 4}}, "z1 has type dict, .* pass a torch.Tensor or a NumPy"),
        (
            {"ids": ["a", "b", "c", "d"]},
            r"ids has type list, which torch.as_tensor does not take; .*numpy\.unique\(ids, ",
        ),
        ({"z1": torch.ones(4)}, "z1 has shape"),
        ({"z1": torch.ones(4, 2, dtype=torch.long)}, "dtype torch.int64"),
        ({"z2": torch.ones(5, 2)}, "must agree"),
        ({"z2": torch.ones(4, 2, device="meta")}, "must agree"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"labels": torch.ones(4)}, "labels has shape"),
        ({"ids": torch.ones(3, dtype=torch.long)}, "ids has shape"),
        ({"batch_size": 1}, "batch_size=1"),
        ({"batch_size": 9}, "batch_size=9"),
        ({"layout": "triplets"}, "layout='triplets'"),
    ],
)
def test_misuse_is_a_value_error_that_names_it(change, words):
    given = {"z1": torch.ones(4, 2), "z2": torch.ones(4, 2), **change}
    with pytest.raises(ValueError, match=words):
        doctor(**given)


@pytest.mark.parametrize(
    "other",
    [lambda z: z.numpy(), lambda z: z.tolist(), lambda z: z.numpy()[::-1].astype(">f4")[::-1]],
    ids=["array", "lists", "reversed array of the other byte order"],
)
def test_what_torch_can_read_is_judged_as_the_tensor_is(other):
    z1, z2 = pair(16)
    whole = doctor(z1, z2, temperature=0.2, ids=torch.arange(16), labels=torch.arange(16))
    ids, labels = np.arange(16, dtype=np.uint16), list(range(16))
    found = doctor(other(z1), other(z2), temperature=0.2, ids=ids, labels=labels)
    assert found.plain() == whole.plain()


# --- Archives ------------------------------------------------------------------------------------

OBJECTS = np.array([{"a": 1}], dtype=object)


def test_an_archive_is_read_with_all_that_is_known(tmp_path):
    z1, z2 = pair(16)
    path = tmp_path / "embeddings.npz"
    known = {"labels": np.arange(16, dtype=np.uint16), "temperature": 0.2, "batch_size": 8}
    np.savez(path, z1=z1, z2=z2.double(), **known, other="x", names=OBJECTS)
    given = read_embeddings(path)
    assert set(given) == {"z1", "z2", "labels", "temperature", "batch_size"}
    found = doctor(**given)
    assert found.numbers["negatives"] == 14


GOOD = {"z1": np.ones((4, 2)), "z2": np.ones((4, 2))}


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"z1": np.ones((4, 2)), "names": OBJECTS}, "holds names, z1, not both z1 and z2"),
        (
            {**GOOD, "z1": np.array(["a"])},
            "z1 has type str, which torch.as_tensor does not take",
        ),
        ({**GOOD, "temperature": np.ones(2)}, "array temperature of .*npz: .* must be a positive"),
        ({**GOOD, "temperature": -1}, "array temperature of .*npz: -1 must be a positive finite"),
        ({**GOOD, "batch_size": 2.7}, "array batch_size of .*npz: 2.7 must be a whole number"),
        (
            {**GOOD, "labels": np.array([*"abcd"])},
            r"labels has type ndarray.* take; .*numpy\.unique\(labels",
        ),
    ],
)
def test_an_archive_with_the_wrong_arrays_says_which(arrays, words, tmp_path):
    path = tmp_path / "embeddings.npz"
    np.savez(path, **arrays)
    # A process without the checks of shapes, which object to the types first.
    code = f"""
from flatnce.diagnose import examine
try:
    examine({str(path)!r})
except ValueError as error:
    print(error)
"""
    assert re.search(words, run_forked(code))


def test_what_is_not_an_archive_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"name an \.npz file"):
        read_embeddings(tmp_path / "none.npz")
    path = tmp_path / "embeddings.npz"
    single = io.BytesIO()
    np.save(single, np.ones((4, 2)))
    objects = io.BytesIO()
    np.savez(objects, **{**GOOD, "z1": OBJECTS})
    whole = io.BytesIO()
    np.savez(whole, **GOOD)
    flipped, locked = bytearray(whole.getvalue()), bytearray(whole.getvalue())
    flipped[flipped.index(b"NUMPY") + 140] ^= 1  # a bit of an array
    locked[6] |= 1  # the first file claims to be encrypted, here and in the directory
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    texts = b"", b"no archive", b"PK\x03\x04 cut short", bytes(flipped), bytes(locked)
    for content in (*texts, single, objects):
        path.write_bytes(content if isinstance(content, bytes) else content.getvalue())
        with pytest.raises(ValueError, match=r"without running code.*numpy\.savez"):
            read_embeddings(path)
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        read_embeddings(tmp_path)  # it exists


def test_an_archive_larger_than_the_memory_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "embeddings.npz"
    np.savez_compressed(path, **GOOD, other=np.zeros(10_000))
    whole = 2 * (128 + 64)  # z1 and z2, with their headers
    monkeypatch.setattr(embeddings, "memory_of_machine", lambda: whole)
    assert set(read_embeddings(path)) == {"z1", "z2"}
    monkeypatch.setattr(embeddings, "memory_of_machine", lambda: whole - 1)
    monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(OSError, match=r"embeddings\.npz does not fit into memory.*fewer rows"):
        read_embeddings(path)
