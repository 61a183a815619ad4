"""The side track without a GPU: streams that only note what they are asked for."""

from unittest.mock import MagicMock

import pytest
import torch

from flatnce.pretrain.fused_resnet.passes import SideTrack


@pytest.fixture
def main(monkeypatch):
    """The current stream of a device that is not there."""
    for name in ("Stream", "Event", "stream", "current_stream", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    torch.cuda.is_current_stream_capturing.return_value = False
    return torch.cuda.current_stream.return_value


def test_what_a_failed_pass_left_is_waited_for_but_not_in_a_recording(main):
    side = SideTrack(torch.device("cuda", 0))
    with side.beside(object()):
        main.wait_stream.assert_not_called()
    side.start()
    main.wait_stream.assert_called_once_with(side.stream)
    side.start()
    side.join()
    with side.beside(object()):
        torch.cuda.is_current_stream_capturing.return_value = True
    side.start()
    side.join()
    main.wait_stream.assert_called_once_with(side.stream)
    main.wait_event.assert_not_called()
