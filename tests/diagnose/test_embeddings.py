"""The doctor on embeddings: what it finds, what it says, and what it refuses."""

import io
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import flatnce
from flatnce import functional as F
from flatnce.diagnose import KINDS, Diagnosis, Finding, doctor, measures, read_embeddings
from flatnce.diagnose.embeddings import DamagedArchive
from flatnce.diagnose.measures import (
    MOST_SEARCHED,
    MOST_TOGETHER,
    Case,
    look_around,
    record_of,
    survival,
)
from forked import run_forked


def pair(n=128, d=128, cosine=0.5):
    """Unit rows at a cosine from each other."""
    z = normalize(torch.randn(n, d), dim=1)
    noise = torch.randn(n, d)
    across = normalize(noise - (noise * z).sum(dim=1, keepdim=True) * z, dim=1)
    return z, cosine * z + math.sqrt(1 - cosine**2) * across


def test_the_function_is_callable_although_parts_of_its_package_are_imported():
    from flatnce.diagnose import embeddings

    assert flatnce.doctor is embeddings.doctor and callable(flatnce.doctor)


def test_healthy_embeddings_are_healthy_and_say_their_numbers():
    found = doctor(*pair(), temperature=0.1)
    assert (found.verdict, found.kinds) == ("healthy", ())
    assert found.numbers["negatives"] == 254 and "gain" in str(found)


def cone():
    centre = torch.randn(1, 64)
    return tuple(centre + 0.05 * torch.randn(128, 64) for _ in range(2))


def few_directions():
    inside, basis = torch.randn(128, 3), torch.randn(3, 128)
    return inside @ basis, (inside + 0.3 * torch.randn(128, 3)) @ basis


# Embeddings, arguments, kinds of all findings, words in the evidence of the first.
CASES = {
    "healthy in float16": (pair, {"precision": "float16"}, (), ""),
    "healthy in bfloat16": (pair, {"precision": "bfloat16"}, (), ""),
    "a cone": (cone, {}, ("collapsed",), "uniformity"),
    "three directions": (
        few_directions,
        {"temperature": 0.3},
        ("dimensional collapse",),
        "of 128",
    ),
    "one tensor twice": (
        lambda: pair()[:1] * 2,
        {"temperature": 0.3},
        ("identical views",),
        "100%",
    ),
    "independent views": (
        lambda: (torch.randn(128, 64), torch.randn(128, 64)),
        {"temperature": 0.2},
        ("not learning",),
        "MI",
    ),
    "nothing but broken rows": (
        lambda: (torch.full((4, 8), math.nan), torch.ones(4, 8)),
        {},
        ("broken rows",),
        "4 of 4",
    ),
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


def test_saturation_tells_how_many_negatives_would_cure_it():
    z1, z2 = pair(cosine=0.9)
    found = doctor(z1, z2, temperature=0.1, objective="InfoNCE")
    assert found.kinds == ("saturated",)
    assert "InfoNCE scales" in found.findings[0].evidence
    assert "negatives per row" in found.findings[0].evidence
    assert "FlatNCE" in found.findings[0].remedies[0]
    # The gap grows by the log of how many times more negatives there are; at 0 the gain is 0.5.
    gap = F.contrast_of(F.two_view(z1, z2), 0.1).plain_gap.mean()
    assert found.numbers["negatives_for_half_gain"] == pytest.approx(
        254 * math.exp(-float(gap)), rel=1e-3
    )


@pytest.mark.parametrize(
    "objective, remedy",
    [
        ("infonce", "replace the loss"),
        ("NTXentLoss", "replace the loss"),
        ("ClipLoss", "replace the loss"),
        ("FlatNCE", "go on"),
    ],
)
def test_remedies_depend_on_the_objective(objective, remedy):
    first = doctor(*pair(cosine=0.9), temperature=0.1, objective=objective).findings[0]
    assert first.kind == "saturated" and first.remedies[0].startswith(remedy)


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
    ours, _ = record_of(Case(z1, z2, None, None, 0.1, n, "two_view", ""), 0.1)
    for key in ("uniformity", "effective_rank", "gain", "ess", "mi", "temperature"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-6)


def test_wide_embeddings_take_the_smaller_product(monkeypatch):
    sides = []
    whole = measures.rank_of_gram
    monkeypatch.setattr(
        measures, "rank_of_gram", lambda gram: (sides.append(len(gram)), whole(gram))[1]
    )
    doctor(*pair(8, 512), temperature=0.2)
    assert set(sides) == {8}


def test_many_samples_without_a_batch_size_are_judged_by_some_and_it_is_said(monkeypatch):
    searched = []
    solve = measures.temperature_for_ess
    monkeypatch.setattr(
        measures,
        "temperature_for_ess",
        lambda pairs, ess: (searched.append(len(pairs.anchors)), solve(pairs, ess))[1],
    )
    z1, z2 = pair(MOST_TOGETHER + 500, 16, 0.6)
    found = doctor(z1, z2, temperature=5.0)
    assert found.numbers["samples"] == MOST_TOGETHER + 500
    assert found.numbers["negatives"] == 2 * (MOST_TOGETHER - 1)
    assert any("2,048 drawn with a fixed seed" in reason for reason in found.unknown)
    assert searched == [2 * MOST_SEARCHED]
    assert f"(of {MOST_SEARCHED:,} samples)" in found.findings[0].evidence
    assert doctor(z1, z2, temperature=5.0).numbers == found.numbers


def test_a_batch_size_that_is_given_is_kept_however_large():
    z1, z2 = pair(MOST_TOGETHER + 2, 4, 0.6)
    found = doctor(z1, z2, temperature=0.3, batch_size=MOST_TOGETHER + 2)
    assert found.numbers["negatives"] == 2 * (MOST_TOGETHER + 1)
    assert not any("fixed seed" in reason for reason in found.unknown)


def with_copies(count=20):
    z1, z2 = pair()
    ids = torch.arange(len(z1))
    for values in (z1, z2, ids):
        values[:count] = values[count : 2 * count]
    return z1, z2, ids


def test_duplicates_are_found_and_counted():
    z1, z2, _ = with_copies(20)
    found = doctor(z1, z2, temperature=0.1)
    assert found.kinds == ("duplicates",)
    assert found.numbers["twins_a_row"] == pytest.approx(40 / 128)
    z1, z2, ids = with_copies()
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


def test_without_room_between_positives_and_negatives_the_rate_is_not_known():
    found = doctor(*pair(cosine=0.15), temperature=0.1)
    assert found.numbers["false_negative_rate"] is None
    assert any("false negatives" in reason for reason in found.unknown)


def test_labels_count_false_negatives_by_number_and_weight():
    labels = torch.arange(128) % 4
    centre = normalize(torch.randn(4, 128), dim=1)[labels]
    z1, z2 = (centre + 0.1 * torch.randn(128, 128) for _ in range(2))
    found = doctor(z1, z2, temperature=0.1, labels=labels)
    assert found.numbers["false_negative_rate_by_label"] == pytest.approx(31 / 127)
    assert found.numbers["false_negative_weight_by_label"] > 0.9
    assert "false negatives" in found.kinds


def test_unknown_labels_are_left_out():
    z1, z2 = (normalize(z.double(), dim=1) for z in pair(8, 16))
    seen = look_around(z1, z2, torch.arange(8), 0.1, labels=torch.full((8,), -1))
    assert seen.rate_by_label is None and seen.weight_by_label is None


@pytest.mark.parametrize("scale", [1e6, 1e-8])
def test_float16_dies_where_the_numbers_leave_its_range(scale):
    z1, z2 = pair()
    found = doctor(scale * z1, scale * z2, temperature=0.1, precision="float16")
    assert found.kinds == ("dead in float16",)
    assert doctor(scale * z1, scale * z2, temperature=0.1, precision="bfloat16").kinds == ()


def test_a_gradient_scaler_brings_float16_back():
    z1, z2 = pair(256, 256, 0.94)
    bare = doctor(z1, z2, temperature=0.05, precision="float16", loss_scale=1.0)
    assert bare.kinds == ("dead in float16", "saturated")
    assert doctor(z1, z2, temperature=0.05, precision="float16").kinds == ("saturated",)


def test_the_exact_gradient_survives_in_double_precision():
    assert survival(*pair(16, 8), 0.1, "float64") == pytest.approx(1)


@pytest.mark.parametrize("layout, negatives", [("two_view", 8), ("two_tower", 4)])
def test_few_negatives_are_found_in_both_layouts(layout, negatives):
    found = doctor(*pair(5, cosine=0.4), temperature=0.2, layout=layout)
    assert found.kinds == ("too few negatives",)
    assert found.numbers["negatives"] == negatives


@pytest.mark.parametrize("temperature, kind", [(3.0, "high"), (0.005, "low")])
def test_a_wrong_temperature_is_named_with_a_better_one(temperature, kind):
    found = doctor(*pair(cosine=0.6), temperature=temperature)
    finding = next(one for one in found.findings if one.kind == f"temperature too {kind}")
    assert "would give an ESS of 0.3" in finding.evidence


def test_an_unknown_temperature_is_never_called_wrong_and_said_to_be_unknown():
    found = doctor(*pair())
    assert not any(kind.startswith("temperature") for kind in found.kinds)
    assert any("temperature" in reason for reason in found.unknown)


def test_broken_rows_are_named_and_the_rest_is_judged():
    z1, z2 = pair()
    z1[0], z2[1, 1], z1[2] = math.nan, math.inf, 0
    found = doctor(z1, z2, temperature=0.1)
    assert found.kinds == ("broken rows",)
    assert "3 of 128" in found.findings[0].evidence and found.numbers["samples"] == 125


def test_the_input_is_left_alone():
    z1, z2 = pair(16)
    kept = z1.clone().requires_grad_(True)
    doctor(kept, z2, temperature=0.1)
    assert kept.grad is None and torch.equal(kept.detach(), z1)


def test_a_diagnosis_is_plain_data_and_finite_json():
    found = doctor(*pair(cosine=0.9), temperature=0.05)
    said = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert said["verdict"] == "saturated" and said["findings"][0]["remedies"]


def test_without_findings_and_without_evidence_the_verdict_is_unknown():
    assert Diagnosis("a curve", judged=False).verdict == "unknown"
    assert Diagnosis("a curve", (Finding("flat loss", ""),), judged=False).verdict == "flat loss"
    assert len(set(KINDS)) == len(KINDS)


@pytest.mark.parametrize(
    "change, words",
    [
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
        ({"precision": "half"}, "precision='half'"),
        ({"loss_scale": -1.0}, "loss_scale=-1"),
        ({"layout": "triplets"}, "layout='triplets'"),
    ],
)
def test_misuse_is_a_value_error_that_names_it(change, words):
    given = {"z1": torch.ones(4, 2), "z2": torch.ones(4, 2), **change}
    with pytest.raises(ValueError, match=words):
        doctor(**given)


def test_what_is_no_tensor_or_no_number_is_named():
    # Elsewhere in the tests the checks of shapes object first.
    code = """
import torch, flatnce
z = torch.ones(4, 2)
for given in (
    {"z1": {"rows": 4}, "z2": z},
    {"z1": z, "z2": z, "ids": ["a", "b", "c", "d"]},
    {"z1": z, "z2": z, "temperature": "0.1"},
    {"z1": z, "z2": z, "batch_size": 4.0},
    {"z1": z, "z2": z, "temperature": torch.ones(2)},
):
    try:
        flatnce.doctor(**given)
    except ValueError as error:
        print(error)
"""
    said = run_forked(code).splitlines()
    assert said[0].startswith("z1 is a dict") and "pass a torch.Tensor or a NumPy" in said[0]
    assert said[1].startswith("ids is a list that torch.as_tensor does not take")
    assert said[2].startswith("temperature='0.1' must be")
    assert said[3].startswith("batch_size=4.0 must be a whole number")
    assert said[4].startswith("temperature=tensor")


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "other",
    [
        lambda z: z.numpy(),
        lambda z: z.tolist(),
        lambda z: read_only(z.numpy().copy()),
        lambda z: z.numpy().astype(">f4"),
    ],
    ids=["array", "lists", "read-only array", "array of the other byte order"],
)
def test_what_torch_can_read_is_judged_as_the_tensor_is(other):
    z1, z2 = pair(16)
    whole = doctor(z1, z2, temperature=0.2, ids=torch.arange(16), labels=torch.arange(16))
    ids, labels = np.arange(16, dtype=np.uint16), list(range(16))
    found = doctor(other(z1), other(z2), temperature=0.2, ids=ids, labels=labels)
    assert found.plain() == whole.plain()


def test_views_of_two_types_are_judged_in_the_wider(tmp_path):
    z1, z2 = pair(16)
    wide = doctor(z1.double(), z2.double(), temperature=0.2)
    found = doctor(z1, z2.double().numpy(), temperature=0.2)
    assert found.numbers == wide.numbers and "survival_float64" in found.numbers
    np.savez(tmp_path / "embeddings.npz", z1=z1, z2=z2.double(), temperature=0.2)
    assert doctor(**read_embeddings(tmp_path / "embeddings.npz")).numbers == wide.numbers


class Table:
    """What a data frame is to others: an array on request."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_tables_and_reversed_arrays_are_arrays():
    z1, z2 = (z.numpy() for z in pair(32))
    expected = doctor(z1[::-1].copy(), z2[::-1].copy(), temperature=0.2).numbers
    assert doctor(z1[::-1], z2[::-1], temperature=0.2).numbers == expected
    assert doctor(Table(z1[::-1]), z2[::-1], temperature=0.2).numbers == expected


def test_types_that_torch_does_not_combine_are_refused():
    z1, z2 = pair(8)
    with pytest.raises(ValueError, match=r"float8_e5m2.*float32.*pass one type"):
        doctor(z1.to(torch.float8_e5m2), z2)


def test_the_batch_that_was_taken_for_granted_is_said_with_its_negatives():
    z1, z2 = pair(64, cosine=0.95)
    found = doctor(z1, z2, temperature=0.05)
    assert "64 samples as one batch, 126 negatives per row" in found.findings[0].evidence
    reason = next(reason for reason in found.unknown if "batch size" in reason)
    assert "all 64 samples" in reason and "126 negatives" in reason and "--batch-size" in reason
    given = doctor(z1, z2, temperature=0.05, batch_size=64)
    assert "one batch" not in str(given) and given.numbers == found.numbers


def test_an_archive_is_read_with_all_that_is_known(tmp_path):
    z1, z2 = pair(16)
    path = tmp_path / "embeddings.npz"
    labels = np.arange(16, dtype=np.uint16)
    known = {"labels": labels, "temperature": 0.2, "batch_size": 8}
    np.savez(path, z1=z1, z2=z2, **known, other="x", names=OBJECTS)
    found = read_embeddings(path)
    assert set(found) == {"z1", "z2", "labels", "temperature", "batch_size"}
    assert found["batch_size"] == 8 and found["labels"].dtype == torch.int64
    assert doctor(**found).numbers["negatives"] == 14


def test_an_archive_that_is_not_there_is_a_file_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"name an \.npz file"):
        read_embeddings(tmp_path / "none.npz")


OBJECTS = np.array([{"a": 1}], dtype=object)


def single_array():
    file = io.BytesIO()
    np.save(file, np.ones((4, 2)))
    return file.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no archive at all"),
        lambda path: path.write_bytes(b"PK\x03\x04 cut short"),
        lambda path: np.savez(path, z1=OBJECTS, z2=np.ones((2, 2))),
        lambda path: path.write_bytes(single_array()),
    ],
    ids=["empty", "text", "cut short", "objects", "a single array"],
)
def test_a_damaged_archive_is_one_clear_error(write, tmp_path):
    path = tmp_path / "embeddings.npz"
    write(path)
    with pytest.raises(DamagedArchive, match=r"without running code.*numpy\.savez"):
        read_embeddings(path)


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"z1": np.ones((4, 2)), "names": OBJECTS}, "holds names, z1, but no z2"),
        ({"a": np.ones(3)}, "holds a, but no z1 and no z2"),
        ({"z1": np.array(["a"]), "z2": np.ones((4, 2))}, "z1 in .* has dtype"),
        ({"z1": np.ones((4, 2)), "z2": np.ones((4, 2)), "temperature": np.ones(2)}, "one number"),
        (
            {"z1": np.ones((4, 2)), "z2": np.ones((4, 2)), "batch_size": 2.7},
            "is 2.7; save a whole",
        ),
        ({"z1": np.ones((4, 2)), "z2": np.ones((4, 2)), "batch_size": np.nan}, "is nan; save a"),
    ],
)
def test_an_archive_with_the_wrong_arrays_says_which(arrays, words, tmp_path):
    path = tmp_path / "embeddings.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=words):
        read_embeddings(path)
