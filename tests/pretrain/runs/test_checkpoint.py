"""Checkpoints: what is saved comes back exactly, and no mishap costs the last one."""

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import pickle
import random
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.checkpoint import CheckpointError, DamagedCheckpoint, NoCheckpoint
from forked import Forked
from made_runs import save_checkpoint


def network(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def save(folder: Path, step: int, value: float = 0.0, **options) -> Path:
    weights = {"w": torch.full((2, 2), value or float(step))}
    return save_checkpoint(folder, step, weights, {"step": step}, **options)


def hidden(folder: Path) -> list[str]:
    """Names of a writer's own, but for its lock."""
    return sorted(p.name for p in folder.iterdir() if p.name[0] == "." and p.name != ".lock")


def rewrite_manifest(folder: Path, **changes) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def sign(folder: Path, name: str) -> None:
    """Make the manifest agree with a file, as a careful forger would."""
    content = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_manifest(folder, files=manifest["files"] | {name: entry})


# --- What is saved comes back --------------------------------------------------------------------


def test_a_parameter_in_the_state_comes_back_as_a_plain_tensor(tmp_path):
    save_checkpoint(tmp_path, 1, {"w": torch.ones(1)}, {"scale": nn.Parameter(torch.ones(2))})
    assert not checkpoint.load(tmp_path).state["scale"].requires_grad


def test_weights_come_back_bit_for_bit_with_their_types(tmp_path):
    tied = torch.randn(2, 2)
    weights = {
        "float32": torch.randn(3, 4),
        "float64": torch.randn(5, dtype=torch.float64),
        "bfloat16": torch.randn(2, 2).bfloat16(),
        "int64": torch.tensor(2**40),
        "bool": torch.tensor([True, False]),
        "nan": torch.tensor([math.nan, math.inf, -0.0]),
        "empty": torch.zeros(0, 3),
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "view": torch.randn(10, 10)[2:4, ::2],
        "parameter": nn.Parameter(torch.randn(3)),
        "tied": tied,
        "tied again": tied,
    }
    save_checkpoint(tmp_path, 1, weights, {})
    found = checkpoint.load(tmp_path).weights
    assert {*found} == {*weights}
    for name, tensor in weights.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_plain_data_comes_back_with_its_types(tmp_path):
    state = {
        "number": 2**100,
        "float": 0.1,
        "none": None,
        "flag": True,
        "text": "é",
        "bytes": b"\x00\xff",
        "tuple": (1, [2.0, {"deep": torch.arange(3)}]),
        "dtype": torch.float32,
        "python": random.getstate(),
        3: "a whole number for a key",
    }
    save_checkpoint(tmp_path, 0, {}, state)
    found = checkpoint.load(tmp_path).state
    assert torch.equal(found["tuple"][1][1].pop("deep"), torch.arange(3))
    state["tuple"][1][1].clear()
    assert found == state
    assert type(found["tuple"]) is tuple
    random.setstate(found["python"])


def test_other_tools_read_the_weights(tmp_path):
    from safetensors import safe_open

    folder = save(tmp_path, 7)
    with safe_open(folder / "weights.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert torch.equal(file.get_tensor("w"), torch.full((2, 2), 7.0))


# --- Which are there -----------------------------------------------------------------------------


def test_the_newest_is_loaded_unless_a_step_is_named(tmp_path):
    for step in (0, 5, 10_000_000_000):
        save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [0, 5, 10_000_000_000]
    assert checkpoint.load(tmp_path).step == 10_000_000_000
    assert checkpoint.load(tmp_path, step=5).state == {"step": 5}


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (3, [2, 3, 4]), (None, [0, 1, 2, 3, 4])])
def test_the_last_few_are_kept(tmp_path, keep, left):
    for step in range(5):
        save(tmp_path, step, keep=keep)
    assert checkpoint.steps(tmp_path) == left
    assert not hidden(tmp_path)


def test_an_earlier_step_is_refused_until_the_later_ones_are_removed(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    for step in (15, 30):
        remedy = rf"rewind\(directory, {step - 1}\)"
        with pytest.raises(ValueError, match=rf"step={step} is not after .* step 30 .*{remedy}"):
            save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [10, 20, 30]
    checkpoint.rewind(tmp_path, 15)
    assert checkpoint.steps(tmp_path) == [10]
    save(tmp_path, 15)
    assert checkpoint.steps(tmp_path) == [10, 15]


def test_other_files_are_neither_read_nor_removed(tmp_path):
    (tmp_path / "step-000000099").write_text("a file")
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes").mkdir()
    save(tmp_path, 1, keep=1)
    save(tmp_path, 2, keep=1)
    assert checkpoint.steps(tmp_path) == [2]
    assert {"notes", "step-12", "step-000000099"} < {p.name for p in tmp_path.iterdir()}


# --- What cannot be read -------------------------------------------------------------------------


def test_what_is_not_there_is_named_with_what_is(tmp_path):
    with pytest.raises(NoCheckpoint, match="has no checkpoint; name another run, or train this"):
        checkpoint.load(tmp_path / "nowhere")
    save(tmp_path, 3), save(tmp_path, 6)
    with pytest.raises(NoCheckpoint, match=r"step=4: .* has no such checkpoint; it has 3, 6"):
        checkpoint.load(tmp_path, step=4)


def test_a_folder_that_may_not_be_read_does_not_count_as_one_without_checkpoints(
    tmp_path, monkeypatch
):
    save(tmp_path, 3)
    refuse = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", str(tmp_path)))
    for listing in ("os.scandir", "os.listdir"):
        monkeypatch.setattr(listing, refuse)
    with pytest.raises(PermissionError):
        checkpoint.steps(tmp_path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path):
    folder = save(tmp_path, 1)
    rewrite_manifest(folder, format_version=checkpoint.FORMAT_VERSION + 1, flatnce="9.0")
    with pytest.raises(CheckpointError, match=r"format_version 2.*upgrade flatnce .*9\.0"):
        checkpoint.load(tmp_path)


every_file = pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "manifest.json"])


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@every_file
@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], flipped])
def test_a_file_cut_short_or_changed_is_named(tmp_path, name, damage):
    path = save(tmp_path, 1) / name
    path.write_bytes(damage(path.read_bytes().rstrip()))
    with pytest.raises(DamagedCheckpoint, match=rf"{name} (was cut short or changed|is damaged)"):
        checkpoint.load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=rf"{name} is missing"):
        checkpoint.load(tmp_path)


@every_file
def test_a_file_of_terabytes_is_refused_unread(tmp_path, monkeypatch, name):
    monkeypatch.setattr(checkpoint, "memory_of_machine", lambda: math.inf)
    path = save(tmp_path, 1) / name
    os.truncate(path, 3 << 40)  # takes no place on the disk
    with pytest.raises(DamagedCheckpoint, match=rf"{name} (was cut short or changed|is damaged)"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt"])
def test_a_file_larger_than_the_memory_is_refused_also_with_its_manifest(
    tmp_path, monkeypatch, name
):
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    monkeypatch.setattr(checkpoint, "memory_of_machine", lambda: 16e9)
    os.truncate(folder / name, 3 << 40)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite_manifest(folder, files=files | {name: {"bytes": 3 << 40, "sha256": "0" * 64}})
    words = rf"{name} has 3,299 GB, and the memory 16 GB; use a machine with more memory$"
    with pytest.raises(CheckpointError, match=words) as raised:
        checkpoint.load(tmp_path)
    assert not isinstance(raised.value, DamagedCheckpoint)  # it is good; no other step is named


def test_a_file_exactly_as_large_as_the_memory_is_read(tmp_path, monkeypatch):
    folder = save(tmp_path, 1)
    sizes = [(folder / name).stat().st_size for name in ("weights.safetensors", "state.pt")]
    monkeypatch.setattr(checkpoint, "memory_of_machine", lambda: max(sizes))
    assert checkpoint.load(tmp_path).step == 1


class Intruder:
    def __reduce__(self):
        return (print, ("code was run",))


def test_forged_files_run_no_code(tmp_path, capsys):
    folder = save(tmp_path, 1)
    buffer = io.BytesIO()
    torch.save({"state": Intruder()}, buffer)
    pickled = pickle.dumps(Intruder(), protocol=2)
    forged = [("state.pt", buffer.getvalue()), ("state.pt", pickled)]
    for name, content in (*forged, ("weights.safetensors", b"no weights at all")):
        (folder / name).write_bytes(content)
        sign(folder, name)
        with pytest.raises(DamagedCheckpoint, match="and its manifest too"):
            checkpoint.load(tmp_path)
    assert capsys.readouterr().out == ""


# --- Another model -------------------------------------------------------------------------------


def test_a_part_can_be_restored_by_its_prefix(tmp_path):
    whole = nn.ModuleDict({"encoder": network(), "queue": nn.Linear(2, 2)})
    save_checkpoint(tmp_path, 1, whole.state_dict(), {})
    part = network()
    checkpoint.load(tmp_path).restore(part, prefix="encoder.")
    assert all(map(torch.equal, part.parameters(), whole["encoder"].parameters()))
    with pytest.raises(CheckpointError, match=r"another model \(size mismatch for .*weight"):
        checkpoint.load(tmp_path).restore(network(6), prefix="encoder.")


# --- What cannot be saved ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state": {"a": {1, 2}}}, r"state\['a'\] is a set"),
        ({"state": {"a": [0, Path("x")]}}, r"state\['a'\]\[1\] is a PosixPath"),
        ({"state": {"a": {"b": (nn.ReLU(),)}}}, r"state\['a'\]\['b'\]\[0\] is a ReLU"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_named(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        save_checkpoint(tmp_path, **{"step": 1, "weights": {}, "state": {}, **changed})
    assert checkpoint.steps(tmp_path) == []


def full_disk(name: str):
    """A write that fails half-way through a file."""
    whole = checkpoint._write_file

    def fail(path: Path, content: bytes) -> None:
        if path.name != name:
            return whole(path, content)
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fail


@every_file
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_file", full_disk(name))
        with pytest.raises(CheckpointError, match=r"there is none yet.*, then start it again$"):
            save(tmp_path, 1)
    save(tmp_path, 1, keep=1)
    monkeypatch.setattr(checkpoint, "_write_file", full_disk(name))
    with pytest.raises(
        CheckpointError, match=r"of step 1 is unchanged.*, then continue$"
    ) as found:
        save(tmp_path, 2, value=5.0, keep=1)
    assert found.value.errno == errno.ENOSPC
    assert checkpoint.load(tmp_path).weights["w"][0, 0] == 1
    assert not hidden(tmp_path)
    monkeypatch.undo()
    save(tmp_path, 2, keep=1)
    assert checkpoint.steps(tmp_path) == [2]


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"was not written to .*file .*File exists"):
        save(tmp_path / "file", 1)


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "_write_file", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert checkpoint.steps(tmp_path) == [1] and not hidden(tmp_path)


def test_everything_is_forced_to_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), sync(file))[1])
    monkeypatch.setattr(os, "rename", lambda *where: (events.append("name"), rename(*where))[1])
    save(tmp_path, 1)
    # Three files and their folder, the name, and the folder that holds the name.
    assert events == ["sync"] * 4 + ["name", "sync"]


# --- Several writers, and dead ones --------------------------------------------------------------

KILLED = """
import os, pathlib, signal, sys, torch
from flatnce.pretrain.runs import checkpoint
whole = checkpoint._write_file
def killed(path, content):
    if path.name == "state.pt":
        path.write_bytes(content[:10])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(path, content)
checkpoint._write_file = killed
writer = checkpoint.Writer()
writer.save(pathlib.Path(sys.argv[1]), 2, {"w": torch.ones(3)}, {}, keep=3)
writer.wait()
"""


def test_what_a_killed_writer_leaves_is_ignored_and_cleared_away(tmp_path):
    save(tmp_path, 1)
    done = Forked(tmp_path, code=KILLED).wait()
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(hidden(tmp_path)) == 1
    assert checkpoint.steps(tmp_path) == [1]
    assert checkpoint.load(tmp_path).step == 1
    save(tmp_path, 2)
    assert checkpoint.load(tmp_path).step == 2
    assert not hidden(tmp_path)


def test_where_files_cannot_be_locked_leftovers_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    leftover = tmp_path / ".step-000000001.abcd.partial"
    leftover.mkdir()
    save(tmp_path, 2)
    assert leftover.exists() and checkpoint.load(tmp_path).step == 2


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"pip install 'flatnce\[train\]'"):
        save(tmp_path, 1)
