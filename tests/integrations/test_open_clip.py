"""FlatNCE in ClipLoss's place: its call, its value, the scale's gradient; FlatNCE for features."""

import argparse
import copy
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from flatnce import EssController, FlatNCE, LearnedTemperature, Monitor
from flatnce.integrations.open_clip import LOGGED, FlatClipLoss, create_loss
from paths import ROOT

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def clip_loss():
    reason = "open_clip is not installed: pip install 'flatnce[open-clip]'"
    return pytest.importorskip("open_clip.loss", reason=reason).ClipLoss


def features(b=8, d=5, dtype=torch.float64):
    """Unit rows, as open_clip's models return them, that agree in part."""
    images = torch.randn(b, d, dtype=dtype)
    texts = images + 0.7 * torch.randn(b, d, dtype=dtype)
    return [normalize(z, dim=1).requires_grad_() for z in (images, texts)]


def scale_of(value=10.0, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype, requires_grad=True)


# --- In place of ClipLoss ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["__init__", "forward"])
def test_it_takes_what_cliploss_takes(clip_loss, method):
    theirs = inspect.signature(getattr(clip_loss, method)).parameters
    ours = inspect.signature(getattr(FlatClipLoss, method)).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default


def test_value_and_gradient_of_the_scale_are_those_of_cliploss(clip_loss):
    z, scale = features(), scale_of()
    ours, theirs = FlatClipLoss()(*z, scale), clip_loss()(*z, scale)
    torch.testing.assert_close(ours, theirs, **EXACT)
    found, expected = (torch.autograd.grad(loss, [*z, scale]) for loss in (ours, theirs))
    torch.testing.assert_close(found[2], expected[2], **EXACT)
    assert float((found[0] - expected[0]).norm()) > 1e-3  # the features' is another
    flat = FlatNCE(0.1, layout="two_tower", normalize=False)(*z)
    torch.testing.assert_close(found[:2], torch.autograd.grad(flat, z), **EXACT)
    loss_fn, monitor = FlatClipLoss(), Monitor()
    loss_fn(*z, scale)
    monitor.update(loss_fn.last)
    assert monitor.compute()["temperature"] == pytest.approx(0.1)
    assert loss_fn.temperature is None  # an argument of each call
    for other in (0.2, EssController(0.3), LearnedTemperature(0.1)):
        with pytest.raises(ValueError, match=r"^temperature=.* cannot be set; pass logit_scale"):
            loss_fn.temperature = other
    assert loss_fn.temperature is None and not list(loss_fn.parameters())
    assert monitor.history[-1]["alignment"] > 0  # the features are of length one


def test_logged_numbers_are_in_the_dict_but_not_among_its_values_which_open_clip_sums():
    loss_fn = FlatClipLoss(logged=["ess", "gain"])
    z = features()
    found = loss_fn(*z, logit_scale=10.0, output_dict=True)  # a number is a scale too
    assert list(found) == ["contrastive_loss", "ess", "gain"]
    assert torch.equal(sum(found.values()), found["contrastive_loss"])
    torch.testing.assert_close(found["contrastive_loss"], FlatClipLoss()(*z, scale_of()))
    assert list(loss_fn(*features(b=1), scale_of(), output_dict=True)) == ["contrastive_loss"]
    copy.deepcopy(loss_fn)
    with pytest.raises(ValueError, match=r"logged='speed' is unknown"):
        FlatClipLoss(logged=["speed"])


@pytest.mark.parametrize("scale", [-2.0, 0.0, float("nan")])
def test_a_bad_logit_scale_is_named(scale):
    with pytest.raises(ValueError, match=rf"logit_scale={scale} must be a positive finite number"):
        FlatClipLoss()(*features(), scale_of(scale))


def test_a_logit_bias_changes_nothing_and_gets_a_gradient_of_zero():
    z, scale, bias = features(), scale_of(), scale_of(-10.0)
    loss = FlatClipLoss()(*z, scale, logit_bias=bias)
    torch.testing.assert_close(loss, FlatClipLoss()(*z, scale), **EXACT)
    assert float(torch.autograd.grad(loss, bias)[0]) == 0


# --- Arguments -----------------------------------------------------------------------------------


def arguments(**changed):
    usual = {"local_loss": True, "gather_with_grad": True, "rank": 0, "world_size": 1}
    names = {"model": "ViT-B-32", "distill": False, "siglip": False, "horovod": False}
    return argparse.Namespace(**usual | names | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"siglip": True}, "siglip"),
        ({"distill": True}, "distill"),
        ({"model": "coca_ViT-B-32"}, "CoCa"),
        ({"horovod": True}, "use_horovod"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
    ],
)
def test_create_loss_refuses_what_is_not_cliploss(changed, said):
    with pytest.raises(ValueError, match=said):
        create_loss(arguments(**changed))
    loss_fn = create_loss(arguments(rank=1, world_size=2))
    assert (loss_fn.local_loss, loss_fn.rank, loss_fn.world_size) == (True, 1, 2)
    with pytest.raises(ValueError, match=r"world_size=2 was given, but torch\.distributed"):
        loss_fn(*features(), scale_of())


# --- In open_clip --------------------------------------------------------------------------------


class Loader(list):
    """What the training loop asks of a loader."""

    num_samples, num_batches = 32, 4


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_released_training_loop_runs_with_it(clip_loss, example, accumulate):
    reason = "open_clip's training loop is not installed: pip install 'open_clip_torch[training]'"
    train = pytest.importorskip("open_clip_train.train", reason=reason)
    args = arguments(
        device="cpu", precision="fp32", accum_freq=accumulate, skip_scheduler=True, local_rank=0,
        grad_clip_norm=1.0, log_every_n_steps=1, log_local=False, batch_size=8, wandb=False,
        save_logs=True, model="tiny",
    )  # fmt: skip
    batches = Loader((torch.randn(8, 3, 8, 8), torch.randint(1, 99, (8, 12))) for _ in range(4))
    data = {"train": argparse.Namespace(dataloader=batches, set_epoch=lambda epoch: None)}
    model, logged = example.towers(), []
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    writer = argparse.Namespace(add_scalar=lambda *line: logged.append(line))
    loss = create_loss(args)
    train.train_one_epoch(
        model, data, loss, 0, optimizer, None, None, None, args, tb_writer=writer
    )
    values = [value for name, value, _ in logged if name == "train/contrastive_loss"]
    assert len(values) == 4 // accumulate
    assert min(values) > 0
    assert values == [value for name, value, _ in logged if name == "train/loss"]
    for name in LOGGED:
        assert sum(line[0] == f"train/{name}" for line in logged) == 4 // accumulate
    assert loss.last.contrast.count[0] == 8 * accumulate - 1
    moved = zip(before, model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in moved)


def test_the_page_changes_a_line_that_the_released_script_has(clip_loss):
    reason = "open_clip's training script is not installed: pip install 'open_clip_torch'"
    package = pytest.importorskip("open_clip_train", reason=reason)
    script = (Path(package.__file__).parent / "main.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "from-open-clip.md").read_text(encoding="utf-8")
    (line,) = [line[1:] for line in page.splitlines() if line.startswith("-from open_clip ")]
    assert f"\n{line}\n" in script
    kept = line.replace(", create_loss", "")
    assert f"\n+{kept}\n+from flatnce.integrations.open_clip import create_loss\n" in page


def test_half_precision_gives_a_float32_loss_and_gradients_of_its_own_kind(clip_loss):
    z, scale = features(dtype=torch.bfloat16), scale_of(dtype=torch.float32)
    loss = FlatClipLoss()(*z, scale)
    kinds = [slope.dtype for slope in torch.autograd.grad(loss, [*z, scale])]
    assert (loss.dtype, *kinds) == (torch.float32, *2 * [torch.bfloat16], torch.float32)


def test_the_example_runs_and_learns(clip_loss, example, capsys):
    history, accuracy = example.main()
    assert accuracy > 0.3  # of ten digits
    assert min(line["loss"] for line in history) >= 0
    assert "zero-shot accuracy" in capsys.readouterr().out


# --- A last batch of one row ---------------------------------------------------------------------


def test_a_batch_of_one_is_zero_as_there_with_gradients_of_zero(clip_loss):
    z, scale, bias = features(b=1), scale_of(), scale_of(-10.0)
    loss_fn = FlatClipLoss()
    loss_fn(*features(), scale)
    before = loss_fn.last
    loss = loss_fn(*z, scale, bias)
    assert loss.item() == clip_loss()(*z, scale).item() == 0
    loss.backward()
    assert [part.grad.abs().sum() for part in (*z, scale, bias)] == [0, 0, 0, 0]
    assert loss_fn.last is before
