"""The side track without a card: streams that only note what they are asked for."""

from contextlib import contextmanager

import pytest
import torch

from flatnce.pretrain.fused_resnet.passes import SideTrack


class Stream:
    """What a pass asks of a stream, written down."""

    def __init__(self, *_):
        self.asked = []

    def wait_stream(self, other):
        self.asked.append(other)

    def wait_event(self, event):
        self.asked.append(event)


class Event:
    def record(self, stream):
        self.stream = stream


@pytest.fixture
def chain(monkeypatch):
    """The current stream of a device that is not there."""
    chain = Stream()

    @contextmanager
    def stream(_):
        yield

    for name, fake in {
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": lambda _: chain,
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return chain


def test_what_a_failed_pass_left_is_waited_for_but_not_in_a_recording(chain, monkeypatch):
    side = SideTrack(torch.device("cuda", 0))
    with side.beside(object()):
        assert not chain.asked
    side.start()
    assert chain.asked == [side.stream]
    side.start()
    side.join()
    assert chain.asked == [side.stream]
    with side.beside(object()):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    side.start()
    side.join()
    assert chain.asked == [side.stream]
