"""The views on a GPU: the CPU's numbers, no host read, one graph for every epoch."""

import pytest
import torch

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.views import Views
from pictures import SETTINGS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]


@pytest.fixture(params=SETTINGS)
def setting(request):
    return SETTINGS[request.param]


def test_draws_are_the_cpus():
    indices, settings = torch.arange(5000), Views(32, seed=0)
    here, there = (draws.view_keys(0, 3, each, 2) for each in (indices, indices.cuda()))
    assert torch.equal(draws.draw_uniforms(there).cpu(), draws.draw_uniforms(here))
    here, there = settings.plan(here, 32, 32), settings.plan(there, 32, 32)
    assert all(torch.equal(b.cpu(), a) for a, b in zip(here.boxes, there.boxes, strict=True))
    for a, b in zip(here.jitter, there.jitter, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-7)


def test_views_are_the_cpus_up_to_rounding(setting):
    draw, images = setting
    indices = torch.arange(len(images))
    difference = draw(images.cuda(), indices.cuda(), 2).cpu() - draw(images, indices, 2)
    # Pixels on solarize's threshold, and weights on the grid's half, may fall to either side.
    assert (difference.abs() > 1e-4).double().mean() < 1e-3
    assert difference.abs().max() < 0.05


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_views_do_not_depend_on_the_batch(precision, setting):
    draw, images = setting
    images, indices = images.cuda(), torch.arange(len(images)).cuda()
    expected = draw(images, indices, 0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = torch.cat([draw(images[k : k + 1], indices[k : k + 1], 0) for k in range(5)], 1)
        whole = draw(images, indices, 0)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(whole, expected)
    assert torch.equal(found, expected[:, :5])


def test_views_never_read_the_device(setting):
    draw, images = setting
    images, indices = images.cuda(), torch.arange(len(images)).cuda()
    draw(images, indices, 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw(images, indices, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_one_captured_graph_serves_every_epoch(setting):
    draw, images = setting
    images, indices = images.cuda(), torch.arange(len(images)).cuda()
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")
    expected = [draw(images, indices, number) for number in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = draw(images, indices, epoch)
    for number in range(3):
        epoch.fill_(number)
        graph.replay()
        assert torch.equal(found, expected[number])
