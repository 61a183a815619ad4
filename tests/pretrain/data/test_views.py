"""The views as a user calls them: the same whatever the batch, and torchvision's in the end."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from flatnce.pretrain.data import views as views_module
from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.views import CentreCrop, Views
from forked import run_forked
from pictures import EVERYTHING, SETTINGS, by_torchvision, pictures

LEVEL = 1 / 255


@pytest.fixture(params=SETTINGS)
def setting(request):
    """Views, images, and the images' numbers in some data set."""
    draw, images = SETTINGS[request.param]
    return draw, images, 1000 - 7 * torch.arange(len(images))


# One process for all that needs one without pytest's shape checks: they would come before our
# own errors, and torch.compile cannot trace them.
ELSEWHERE = """
import hashlib, json, sys, torch
sys.path.insert(0, sys.argv[1])
from pictures import pictures
from torch._dynamo.utils import counters
from flatnce.pretrain.data.augmentation import fused
from flatnce.pretrain.data.views import CentreCrop, Views

images, indices = pictures(24), torch.arange(24)
draw = Views(32, seed=1)
views = draw(images[12:], indices[12:], epoch=2)
found = {"views": hashlib.sha256(views.numpy().tobytes()).hexdigest()}

def error(function, *arguments, **named):
    try:
        return function(*arguments, **named) and ""
    except ValueError as problem:
        return str(problem)

found["size"] = error(Views, 32.0, seed=0)
found["crop"] = error(Views, 32, seed=0, crop=0.5)
found["flip"] = error(Views, 32, seed=0, flip="half")
found["images"] = error(draw, images.tolist(), indices, 0)
found["indices"] = error(draw, images, indices.tolist(), 0)
found["epoch"] = error(draw, images, indices, 0.5)

small, few = pictures(3, 3, 24), torch.arange(3)
draw = Views(20, seed=1, blur=0.5, solarize=0.3, cutout=0.5, noise=0.1)
step = torch.compile(draw.__call__, fullgraph=True, backend="aot_eager")
found["tensor epochs"] = [
    torch.equal(step(small, few, torch.tensor(epoch)), draw(small, few, epoch)) for epoch in (0, 5)
]
found["graphs by tensor"] = counters["stats"]["unique_graphs"]
step = torch.compile(Views(8, seed=1).__call__, fullgraph=True, backend="eager")
draw = Views(8, seed=1)
found["epochs"] = [
    torch.equal(step(small, few, epoch), draw(small, few, epoch)) for epoch in (0, 1, 2, 3)
]
found["graphs"] = counters["stats"]["unique_graphs"] - found["graphs by tensor"]
middle = CentreCrop(16, 18)
step = torch.compile(middle.__call__, fullgraph=True, backend="aot_eager")
found["evaluation"] = torch.allclose(step(small), middle(small))

if fused.FOUND:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draw, nodes = Views(6, seed=1), []
    images, indices = pictures(1, 3, 6).to(device), torch.arange(1, device=device)

    def backend(graph, inputs):
        nodes.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def half(images, indices, epoch):
        return draw(images, indices, epoch, 1, dtype=torch.float16, channels_last=True) * 2

    fused.takes = lambda images, size: True  # the interpreter's tensors are on the CPU
    step = torch.compile(half, fullgraph=True, backend=backend)
    epochs = [torch.tensor(epoch, device=device) for epoch in (0, 1)]
    found["fused"] = [
        torch.equal(step(images, indices, now), half(images, indices, now)) for now in epochs
    ]
    found["nodes"] = nodes
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def elsewhere():
    """What another process found."""
    return json.loads(run_forked(ELSEWHERE, Path(__file__).parents[2]))


# ---- the same views whatever else happens


def test_views_have_the_promised_shape_and_type(setting):
    draw, images, indices = setting
    found = draw(images, indices, epoch=0, views=3)
    assert found.shape == (3, 24, images.shape[1], draw.size, draw.size)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert found.isfinite().all()
    assert found.abs().max() <= 2 + 1e-6  # [0, 1] normalised by 0.5 and 0.25


@pytest.mark.parametrize("some", [[0], [23], [5, 2, 11], list(range(23, -1, -1))])
def test_views_do_not_depend_on_the_batch_or_its_order(some, setting):
    draw, images, indices = setting
    whole = draw(images, indices, epoch=3)
    assert torch.equal(draw(images[some], indices[some], epoch=3), whole[:, some])


def test_views_do_not_depend_on_anything_else(setting, monkeypatch):
    draw, images, indices = setting
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    plain = draw(images, indices, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(draw(images, indices, 0, views=1), plain[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(images, indices, 0), plain)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    monkeypatch.setattr(views_module, "CACHED_VALUES", 5 * 2 * images.shape[1] * draw.size**2)
    try:
        assert torch.equal(draw(images, indices, 0), plain)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)


def test_views_are_the_same_in_another_process(elsewhere):
    here = Views(32, seed=1)(pictures(24), torch.arange(24), epoch=2)[:, 12:].contiguous()
    assert elsewhere["views"] == hashlib.sha256(here.numpy().tobytes()).hexdigest()


def test_an_option_does_not_change_the_draws_of_the_others():
    keys = draws.view_keys(1, 0, torch.arange(24), 2)
    plain = Views(32, seed=1).plan(keys, 32, 32)
    more = Views(32, seed=1, **EVERYTHING).plan(keys, 32, 32)
    assert all(map(torch.equal, plain.boxes, more.boxes))
    assert all(map(torch.equal, plain.jitter, more.jitter))
    assert plain.blur is None and Views(64, seed=1).plan(keys, 32, 32).blur is not None


# ---- different views where they should differ


@pytest.mark.parametrize(
    ("seed", "epoch", "shift"), [(2, 0, 0), (1, 1, 0), (1, 0, 24)], ids=["seed", "epoch", "index"]
)
def test_another_key_gives_other_views(seed, epoch, shift):
    images, indices = pictures(24), torch.arange(24)
    first = Views(32, seed=1)(images, indices, epoch=0)
    other = Views(32, seed=seed)(images, indices + shift, epoch)
    assert ((first - other).abs().flatten(2).amax(dim=2) > LEVEL).all()
    assert ((first[0] - first[1]).abs().flatten(1).amax(dim=1) > LEVEL).all()


# ---- against torchvision, start to end


@pytest.mark.parametrize(
    ("settings", "channels", "side"),
    [
        (Views(32, seed=4, mean=0.0, std=1.0), 3, (32, 32)),
        (Views(32, seed=4, jitter=1.0, mean=0.0, std=1.0), 3, (40, 51)),
        (Views(64, seed=4, solarize=0.5, mean=0.0, std=1.0), 3, (70, 64)),
        (Views(28, seed=4, mean=0.0, std=1.0), 1, (28, 28)),
        (Views(32, seed=4, jitter=0.0, grayscale=0.0, blur=0.0, mean=0.0, std=1.0), 3, (64, 48)),
    ],
    ids=["small", "strong", "blurred and solarized", "grey", "finetune"],
)
def test_views_are_what_torchvision_makes_of_the_same_plan(settings, channels, side):
    pytest.importorskip("torchvision", reason="pip install 'flatnce[train]'")
    n = 40
    images, indices = pictures(n, channels, *side), torch.arange(n)
    plan = settings.plan(draws.view_keys(settings.seed, 2, indices, 2), *side)
    found = settings(images, indices, epoch=2)
    expected = torch.stack(
        [
            torch.stack([by_torchvision(images[i], settings.size, plan, i, v) for i in range(n)])
            for v in range(2)
        ]
    )
    difference = (found - expected).abs()
    # Jitter stretches the crop's 0.4 of a level; a pixel on solarize's threshold jumps by one.
    assert difference.max() < 1.5 * LEVEL
    assert difference.mean() < 0.05 * LEVEL


def test_mean_and_std_are_taken_channel_by_channel():
    images, indices = pictures(6), torch.arange(6)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    plain = Views(32, seed=0, mean=0.0, std=1.0)(images, indices, 0)
    found = Views(32, seed=0, mean=mean, std=std)(images, indices, 0)
    shape = (1, 1, 3, 1, 1)
    expected = (plain - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    torch.testing.assert_close(found, expected)
    plain, found = (CentreCrop(32, mean=m, std=0.5)(images) for m in (0.0, mean))
    torch.testing.assert_close(found, plain - torch.tensor(mean).view(1, 3, 1, 1) / 0.5)


def test_cutout_sets_a_square_to_the_mean():
    images, indices = pictures(6) | 1, torch.arange(6)  # no level is the mean, 0
    found = Views(32, seed=0, cutout=1.0, jitter=0.0, mean=0.0, std=1.0)(images, indices, 0)
    holes = (found == 0).flatten(3).sum(dim=3)
    assert (holes >= 8 * 8).all() and (holes <= 16 * 16).all()
    assert (holes == 16 * 16).any()


def test_noise_has_its_standard_deviation():
    images = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    settings = {"seed": 0, "jitter": 0.0, "grayscale": 0.0, "mean": 128 / 255, "std": 1.0}
    found = Views(32, noise=0.05, **settings)(images, torch.arange(20), 0)
    assert found.mean().abs() < 5e-4  # 3.5 standard errors of 122,880 values
    torch.testing.assert_close(found.std(), torch.tensor(0.05), rtol=0.01, atol=0)


# ---- evaluation


@pytest.mark.parametrize(
    ("height", "width", "size", "resize"),
    [(96, 141, 224, None), (300, 257, 224, 256), (33, 32, 32, None), (32, 32, 32, None),
     (51, 40, 28, 31)],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_is_torchvisions_resize_and_centre_crop(height, width, size, resize, channels):
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="pip install 'flatnce[train]'")
    images = pictures(2, channels, height, width)
    bicubic = v2.InterpolationMode.BICUBIC
    theirs = v2.Compose([v2.Resize(resize or size, bicubic, antialias=True), v2.CenterCrop(size)])
    found = CentreCrop(size, resize, mean=0.0, std=1.0)(images)
    torch.testing.assert_close(found, theirs(images / 255).clamp(0, 1), rtol=0, atol=1e-5)
    # With whole levels torchvision rounds, and clips what overshoots between rows and columns.
    difference = (found - theirs(images) / 255).abs()
    assert difference.mean() < 0.35 * LEVEL
    assert difference.max() < 4 * LEVEL


# ---- compiled


def test_views_compile_to_one_graph_for_all_epochs_as_tensors_and_two_for_numbers(elsewhere):
    assert elsewhere["tensor epochs"] == [True, True]
    assert elsewhere["graphs by tensor"] == 1
    assert elsewhere["epochs"] == [True] * 4
    assert elsewhere["graphs"] <= 2  # one for the first number, one for any other
    assert elsewhere["evaluation"]


def test_compiled_callers_of_the_kernel_see_one_node(elsewhere):
    pytest.importorskip("triton", reason="the kernel needs Triton")
    assert elsewhere["fused"] == [True, True]
    assert sum("render_views" in node for node in elsewhere["nodes"]) == 1
    assert len(elsewhere["nodes"]) <= 4  # the operator, the product, and no_grad's switches


# ---- bad input

IMAGES, INDICES = pictures(4), torch.arange(4)

BAD_SETTINGS = [
    {"size": 0},
    {"crop": (0.0, 1.0)},
    {"crop": (0.5, 1.2)},
    {"crop": (0.9, 0.2)},
    {"flip": 1.5},
    {"grayscale": -0.1},
    {"cutout": float("nan")},
    {"blur": 1.01},
    {"blur": 0.5, "size": 16},
    {"jitter": 2.6},
    {"std": (0.2, 0.0, 0.2)},
    {"std": ()},
]


@pytest.mark.parametrize("wrong", BAD_SETTINGS, ids=str)
def test_bad_setting_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Views(**{"size": 32, "seed": 0} | wrong)


BAD_CALLS = {
    "images as floats": {"images": IMAGES / 255},
    "images of two channels": {"images": IMAGES[:, :2]},
    "images that are none": {"images": IMAGES[:0], "indices": INDICES[:0]},
    "indices of another batch": {"indices": torch.arange(3)},
    "indices as floats": {"indices": INDICES.float()},
    "indices elsewhere": {"indices": INDICES.to("meta")},
    "epoch": {"epoch": -1},
    "epoch as a float tensor": {"epoch": torch.tensor(0.5)},
    "epoch of several": {"epoch": INDICES},
    "views": {"views": 0},
    "views beyond the key": {"views": 257},
    "mean": {"images": IMAGES[:, :1]},
}


@pytest.mark.parametrize("name", ["size", "crop", "flip", "images", "indices", "epoch"])
def test_wrong_type_is_refused_by_name(name, elsewhere):
    assert elsewhere[name].startswith(name)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call_is_refused_by_name(case):
    arguments = {"images": IMAGES, "indices": INDICES, "epoch": 0} | BAD_CALLS[case]
    with pytest.raises(ValueError, match=case.split()[0]):
        Views(32, seed=0, mean=(0.1, 0.2, 0.3))(**arguments)


@pytest.mark.parametrize("arguments", [(0,), (32, 0), (32, 31)])
def test_bad_evaluation_is_refused_by_name(arguments):
    with pytest.raises(ValueError, match="resize" if len(arguments) > 1 else "size"):
        CentreCrop(*arguments)
