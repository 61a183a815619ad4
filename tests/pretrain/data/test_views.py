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
from pictures import by_torchvision, pictures

LEVEL = 1 / 255
EVERYTHING = {"blur": 0.5, "solarize": 0.3, "cutout": 0.5, "noise": 0.1}

SETTINGS = {
    "plain": (Views(32, seed=1), pictures(24)),
    "everything": (Views(33, seed=1, **EVERYTHING), pictures(24, 3, 40, 37)),
    "grey": (Views(21, seed=1, **EVERYTHING), pictures(24, 1, 28)),
    "large": (Views(64, seed=1), pictures(24, 3, 64)),
}


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
from flatnce.pretrain.data.views import Views

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
found["seed"] = error(Views, 32, seed=1.5)
found["crop"] = error(Views, 32, seed=0, crop=0.5)
found["flip"] = error(Views, 32, seed=0, flip="half")
found["jitter"] = error(Views, 32, seed=0, jitter=None)
found["blur"] = error(Views, 32, seed=0, blur="always")
found["mean"] = error(Views, 32, seed=0, mean="0.5")
found["resize"] = error(Views.evaluation, 32, 40.0)
found["images"] = error(draw, images.tolist(), indices, 0)
found["indices"] = error(draw, images, indices.tolist(), 0)
found["epoch"] = error(draw, images, indices, 0.5)
found["views="] = error(draw, images, indices, 0, 2.0)

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
middle = Views.evaluation(16, 18)
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


def test_views_do_not_depend_on_how_many_are_drawn(setting):
    draw, images, indices = setting
    assert torch.equal(draw(images, indices, 0, views=4)[:1], draw(images, indices, 0, views=1))


def test_views_do_not_depend_on_chunks(setting, monkeypatch):
    draw, images, indices = setting
    whole = draw(images, indices, epoch=0)
    monkeypatch.setattr(views_module, "CACHED_VALUES", 5 * 2 * images.shape[1] * draw.size**2)
    assert torch.equal(draw(images, indices, epoch=0), whole)


def test_views_do_not_depend_on_threads(setting):
    draw, images, indices = setting
    threads = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        found.append(draw(images, indices, epoch=0))
    torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_views_do_not_depend_on_autocast_or_the_default_dtype(setting):
    draw, images, indices = setting
    plain = draw(images, indices, epoch=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(images, indices, epoch=0), plain)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(draw(images, indices, epoch=0), plain)
    finally:
        torch.set_default_dtype(torch.float32)


def test_views_neither_use_nor_move_torchs_generator(setting):
    draw, images, indices = setting
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = draw(images, indices, epoch=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(draw(images, indices, epoch=0), first)


def test_views_are_the_same_in_another_process(elsewhere):
    here = Views(32, seed=1)(pictures(24), torch.arange(24), epoch=2)[:, 12:].contiguous()
    assert elsewhere["views"] == hashlib.sha256(here.numpy().tobytes()).hexdigest()


def test_an_option_does_not_change_the_draws_of_the_others():
    images, indices = pictures(24), torch.arange(24)
    plain = Views(32, seed=1).plan(draws.view_keys(1, 0, indices, 2), 32, 32)
    more = Views(32, seed=1, **EVERYTHING).plan(draws.view_keys(1, 0, indices, 2), 32, 32)
    assert all(map(torch.equal, plain.boxes, more.boxes))
    assert all(map(torch.equal, plain.jitter, more.jitter))
    assert images.dtype == torch.uint8


# ---- different views where they should differ


def share_of_distinct_pairs(views):
    """Of all pairs of views, how many differ by more than a level somewhere."""
    flat = views.flatten(0, 1).flatten(1)
    differ = (flat[:, None] - flat[None]).abs().amax(dim=2) > LEVEL
    pairs = len(flat) * (len(flat) - 1)
    return differ.sum().item() / pairs


def same_picture(n):
    return pictures(1).expand(n, -1, -1, -1)


def test_copies_of_one_picture_get_views_of_their_own():
    found = Views(32, seed=0)(same_picture(20), torch.arange(20), epoch=0)
    assert share_of_distinct_pairs(found) == 1


@pytest.mark.parametrize(
    ("seed", "epoch", "shift"), [(2, 0, 0), (1, 1, 0), (1, 0, 24)], ids=["seed", "epoch", "index"]
)
def test_another_key_gives_other_views(seed, epoch, shift):
    images, indices = pictures(24), torch.arange(24)
    first = Views(32, seed=1)(images, indices, epoch=0)
    other = Views(32, seed=seed)(images, indices + shift, epoch)
    assert ((first - other).abs().flatten(2).amax(dim=2) > LEVEL).all()


# ---- against torchvision, start to end


@pytest.mark.parametrize(
    ("settings", "channels", "side"),
    [
        (Views(32, seed=4, mean=0.0, std=1.0), 3, (32, 32)),
        (Views(32, seed=4, jitter=1.0, mean=0.0, std=1.0), 3, (40, 51)),
        (Views(64, seed=4, solarize=0.5, mean=0.0, std=1.0), 3, (70, 64)),
        (Views(28, seed=4, mean=0.0, std=1.0), 1, (28, 28)),
        (Views.finetune(32, seed=4, mean=0.0, std=1.0), 3, (64, 48)),
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


@pytest.mark.parametrize(("size", "drawn"), [(63, False), (64, True)])
def test_auto_blurs_from_64_pixels_up(size, drawn):
    plan = Views(size, seed=0).plan(draws.view_keys(0, 0, torch.arange(4), 2), 32, 32)
    assert (plan.blur is not None) == drawn


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
    found = Views.evaluation(size, resize, mean=0.0, std=1.0)(images)
    torch.testing.assert_close(found, theirs(images / 255).clamp(0, 1), rtol=0, atol=1e-5)
    # With whole levels torchvision rounds, and clips what overshoots between rows and columns.
    difference = (found - theirs(images) / 255).abs()
    assert difference.mean() < 0.35 * LEVEL
    assert difference.max() < 4 * LEVEL


def test_evaluation_normalises():
    images = pictures(2)
    found = Views.evaluation(32, mean=(0.1, 0.2, 0.3), std=0.5)(images)
    expected = (images / 255 - torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)) / 0.5
    torch.testing.assert_close(found, expected)


def test_evaluation_is_no_view_of_its_input():
    images = pictures(2)
    before = images.clone()
    Views.evaluation(32)(images).zero_()
    assert torch.equal(images, before)


# ---- compiled


def test_views_compile_to_one_graph_for_all_epochs_as_tensors(elsewhere):
    assert elsewhere["tensor epochs"] == [True, True]
    assert elsewhere["graphs by tensor"] == 1


def test_views_compile_to_two_graphs_for_all_epochs_as_numbers(elsewhere):
    assert elsewhere["epochs"] == [True] * 4
    assert elsewhere["graphs"] <= 2  # one for the first number, one for any other


def test_evaluation_compiles(elsewhere):
    assert elsewhere["evaluation"]


def test_compiled_callers_of_the_kernel_see_one_node(elsewhere):
    pytest.importorskip("triton", reason="the kernel needs Triton")
    assert elsewhere["fused"] == [True, True]
    assert sum("render_views" in node for node in elsewhere["nodes"]) == 1
    assert len(elsewhere["nodes"]) <= 4  # the operator, the product, and no_grad's switches


# ---- bad input

IMAGES, INDICES = pictures(4), torch.arange(4)

BAD_SETTINGS = {
    "size": {"size": 0},
    "crop of nothing": {"crop": (0.0, 1.0)},
    "crop beyond the image": {"crop": (0.5, 1.2)},
    "crop the wrong way round": {"crop": (0.9, 0.2)},
    "flip": {"flip": 1.5},
    "grayscale": {"grayscale": -0.1},
    "solarize": {"solarize": 2.0},
    "cutout": {"cutout": float("nan")},
    "blur": {"blur": 1.01},
    "blur that does nothing": {"blur": 0.5, "size": 16},
    "jitter": {"jitter": -1.0},
    "jitter beyond the circle": {"jitter": 2.6},
    "noise": {"noise": -0.1},
    "std": {"std": (0.2, 0.0, 0.2)},
    "std empty": {"std": ()},
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_setting_is_refused_by_name(case):
    wrong = {"size": 32, "seed": 0} | BAD_SETTINGS[case]
    with pytest.raises(ValueError, match=case.split()[0]):
        Views(**wrong)


BAD_CALLS = {
    "images as floats": {"images": IMAGES / 255},
    "images without a batch": {"images": IMAGES[0]},
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
}


WRONG_TYPES = ("size", "seed", "crop", "flip", "jitter", "blur", "mean", "resize")
WRONG_TYPES_OF_CALL = ("images", "indices", "epoch", "views=")


@pytest.mark.parametrize("name", WRONG_TYPES + WRONG_TYPES_OF_CALL)
def test_wrong_type_is_refused_by_name(name, elsewhere):
    assert elsewhere[name].startswith(name)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call_is_refused_by_name(case):
    arguments = {"images": IMAGES, "indices": INDICES, "epoch": 0} | BAD_CALLS[case]
    with pytest.raises(ValueError, match=case.split()[0]):
        Views(32, seed=0)(**arguments)


def test_mean_of_another_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="mean has 3 entries for images of 1 channel"):
        Views(32, seed=0, mean=(0.1, 0.2, 0.3))(IMAGES[:, :1], INDICES, 0)


@pytest.mark.parametrize(
    ("arguments", "name"), [((0,), "size"), ((32, 0), "resize"), ((32, 31), "resize")]
)
def test_bad_evaluation_is_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        CentreCrop(*arguments)


@pytest.mark.parametrize("images", [IMAGES.float(), IMAGES[0]])
def test_evaluation_refuses_what_is_no_batch_of_levels(images):
    with pytest.raises(ValueError, match="images"):
        Views.evaluation(32)(images)
