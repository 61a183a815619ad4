"""Maps of the swift pass: copies in pieces, and gradients in groups."""

import pytest
import torch

pytest.importorskip("triton", reason="the swift pass needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def drawn(*shape):
    return torch.randn(*shape, device=DEVICE)


TENSORS = {
    "matrix": lambda: drawn(17, 6),
    "channels last": lambda: last(drawn(5, 4, 3, 3)),
    "channels first": lambda: drawn(5, 4, 3, 3),
    "with gaps": lambda: drawn(9, 12)[:, ::2],
    "small": lambda: drawn(3),
    "one": lambda: drawn(4, 1, 1, 1),
}


@pytest.mark.parametrize("pieces", [16, 64])
def test_copies_in_pieces_are_copies(pieces, monkeypatch):
    from flatnce.models import swift_maps

    monkeypatch.setattr(swift_maps, "PIECE", 4)
    monkeypatch.setattr(swift_maps, "PIECES", pieces)
    copied, real = [], torch._foreach_copy_

    def noted(targets, sources):
        copied.extend(targets)
        real(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    sources = [make() for make in TENSORS.values()]
    targets = [torch.full_like(part, torch.nan, dtype=torch.float16) for part in sources]
    # Another order in memory, which no view shows.
    sources.append(drawn(5, 4, 3, 3))
    targets.append(last(torch.full_like(sources[-1], torch.nan, dtype=torch.float16)))
    swift_maps._copy_together(targets, sources)
    assert len(copied) > len(sources)
    assert len(copied) <= pieces
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.half())


def test_tensors_that_are_large_together_are_copied_whole(monkeypatch):
    from flatnce.models import swift_maps

    monkeypatch.setattr(swift_maps, "MOST", 2 * swift_maps.PIECE)
    copied = []
    monkeypatch.setattr(torch, "_foreach_copy_", lambda targets, _: copied.extend(targets))
    source = torch.zeros(swift_maps.PIECE * swift_maps.PIECES * 2)
    swift_maps._copy_together([source.half()], [source])
    assert [len(part) for part in copied] == [len(source)]


def test_gradients_wait_for_a_group_and_come_out_in_float32(monkeypatch):
    from flatnce.models import swift_maps

    monkeypatch.setattr(swift_maps, "TOGETHER", 10)
    collected = swift_maps.Collected()
    parameters = [torch.zeros(size) for size in (4, 4, 4, 1)]
    gradients = [torch.randn(len(part)).half() for part in parameters]
    seen = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        collected.put(parameter, gradient)
        seen.append(len(collected.found))
    assert seen == [0, 0, 3, 3]
    collected.convert()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.equal(collected.found[parameter], gradient.float())
