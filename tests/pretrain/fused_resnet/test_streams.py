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


def failed_pass(side, kept):
    side.start()
    with side.beside(kept):
        pass


def test_what_a_failed_pass_left_is_waited_for_before_it_is_let_go(chain):
    side = SideTrack(torch.device("cuda", 0))
    failed_pass(side, object())
    assert not chain.asked
    side.start()
    assert chain.asked == [side.stream]
    side.start()
    side.join()
    assert chain.asked == [side.stream]


def test_a_recording_does_not_wait_for_what_began_before_it(chain, monkeypatch):
    side = SideTrack(torch.device("cuda", 0))
    failed_pass(side, object())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    side.start()
    side.join()
    assert not chain.asked


def test_the_device_is_made_the_current_one(monkeypatch):
    entered = []

    @contextmanager
    def device(which):
        entered.append(which)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    for which in (torch.device("cpu"), torch.device("cuda", 1)):
        with SideTrack(which, enabled=False).on_device():
            pass
    assert entered == [torch.device("cuda", 1)]
