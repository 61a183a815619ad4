"""What the runs of recipes share, by scale. Recipes change one or two things in it."""

from flatnce.paper.reproduce.recipe import Setting
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.training.config import TrainConfig, preset

CENTRE_SQUARES = (
    "Image files are decoded to their centre square (on ImageNet 256 pixels a side), and random "
    "crops are drawn from it, in pretraining and in fine-tuning alike; the paper's and SimCLR's "
    "come from the whole photograph.",
)
"""A note of every recipe that pretrains on ImageNet at scale ``paper``."""

OBJECTIVES = ("infonce", "flatnce")
"""SimCLR and FlatCLR, as the paper calls the two of them."""

# One pass over the digits: enough for every line of code, too little for any conclusion. The
# batches are of another order than the paper's small ones, to be done in seconds.
_SMOKE = preset("digits").override(
    epochs=1,
    batch_size=64,
    pool=256,
    log_every=2,
    watch_every=0.5,
    tensorboard=False,
    device="cpu",
    keep=1,
)


def cifar(setting: Setting) -> TrainConfig:
    """The paper's setting of Section 4: CIFAR-10 with a ResNet.

    The paper states 256 dimensions and "a linear classifier trained to convergence"; temperature,
    number of epochs and optimizer it does not. Here: 0.1, 200 and SGD.
    """
    small = preset("cifar10").override(epochs=20, tensorboard=False, keep=1)
    paper = small.override(epochs=200, head_out=256, checkpoint_every=5.0)
    return _tuned(setting.pick(smoke=_SMOKE, small=small, paper=paper), setting)


def imagenet(setting: Setting) -> TrainConfig:
    """The paper's setting of Section 5: ImageNet, ResNet-50, batch 512, 100 epochs."""
    if setting.scale != "paper":
        return cifar(setting)
    if setting.imagenet is None:
        raise ValueError(
            "scale='paper' of this recipe pretrains on ImageNet; name its folder, which holds "
            "train and val with a folder a class: --imagenet PATH"
        )
    # A path has a slash in it; a name without one would be looked up in the catalogue.
    path = setting.imagenet if is_path(setting.imagenet) else f"./{setting.imagenet}"
    whole = preset("imagenet").override(data=path, epochs=100)
    return _tuned(whole.override(checkpoint_every=10.0, watch_every=10.0, keep=1), setting)


def _tuned(config: TrainConfig, setting: Setting) -> TrainConfig:
    return config if setting.rate is None else config.override(rate=setting.rate)
