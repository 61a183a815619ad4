"""The linear probe by gradient descent: short, long, and the transfer protocol's.

The paper reports the same encoders by two linear evaluations of this kind, which differ by more
than its objectives do: 54.6 and 56.7 in Table 2, after "running longer linear evaluation training
with larger batch-sizes" 57.1 and 59.7 in Table S3. It does not say how long and how large; the
two forms here do. The probe to convergence (:mod:`flatnce.pretrain.evaluation.probe`) leaves no such choice.

References:
    The paper, Tables 2 and S3, and "Transfer Learning via a Linear Classifier"; the long form is
    Chen et al., 2020, SimCLR, Appendix B.6, https://arxiv.org/abs/2002.05709
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from flatnce.pretrain.data import Batching
from flatnce.pretrain.evaluation.choice import choose, validation_split
from flatnce.pretrain.evaluation.features import Features
from flatnce.pretrain.evaluation.logistic import Classifier
from flatnce.pretrain.evaluation.probe import VALIDATION, Probe, goodness


@dataclass(frozen=True)
class DescentConfig:
    """How a linear classifier is trained on features as they are, without regularisation.

    Arguments:
        epochs: Passes over the training images.
        batch_size: Images of a step; all of them where there are fewer.
        optimizer: ``sgd`` (Nesterov, momentum 0.9) or ``adam``.
        rates: Learning rates to choose from; SGD's are for a batch of 256 and grow with it.
        cosine: Let the rate fall to 0 along a cosine; else it stays.
    """

    epochs: int
    batch_size: int
    optimizer: str = "sgd"
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    cosine: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"optimizer={self.optimizer!r} is unknown; take sgd or adam")
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates={self.rates} must be positive numbers, one or more")


FORMS = {
    "short": DescentConfig(epochs=10, batch_size=256),
    "long": DescentConfig(epochs=90, batch_size=4096),
    "transfer": DescentConfig(
        epochs=100,
        batch_size=512,
        optimizer="adam",
        rates=(1e-4, 1e-3, 1e-2, 1e-1),
        cosine=False,
    ),
}
"""``short`` and ``long`` for Tables 2 and S3, ``transfer`` for Tables 3 and S2."""


def probe_by_descent(
    train: Features,
    test: Features | Tensor,
    form: str | DescentConfig = "short",
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    rates: Sequence[float] | None = None,
    validation: float = VALIDATION,
    seed: int = 0,
) -> Probe:
    """A linear classifier trained by gradient descent; its rate chosen on held-out images.

    With several rates each is tried on the rest of the training images, then the best is used on
    all. The labels of the test images are not looked at.

    Arguments:
        train: Features and labels of the training images.
        test: Features of the test images.
        form: A name of :data:`FORMS`, or a config.
        epochs: Instead of the form's.
        batch_size: Instead of the form's.
        rates: Instead of the form's.
        validation: Share of the training images held out to choose on.
        seed: Of that draw and of the order of the images.
    """
    if isinstance(form, str) and form not in FORMS:
        raise ValueError(f"form={form!r} is unknown; take one of {', '.join(FORMS)}")
    config = FORMS[form] if isinstance(form, str) else form
    given: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "rates": rates and tuple(rates),
    }
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    asked = test.features if isinstance(test, Features) else test
    train.check()
    protocol: dict[str, Any] = {
        "classifier": "linear, by gradient descent",
        **asdict(config),
        "batch_size": min(config.batch_size, len(train)),
        "weight_decay": 0.0,
        "features": "as they are",
        "seed": seed,
        "fitted_on": len(train),
    }
    del protocol["rates"]
    rate, how = _rate(train, config, validation, seed)
    protocol |= {**how, "rate": rate}
    if config.optimizer == "sgd":
        protocol["rate_of"] = "256 images; a step takes it times its batch over 256"
    return Probe(_descend(train, config, rate, seed).scores(asked), protocol)


def _rate(
    train: Features, config: DescentConfig, validation: float, seed: int
) -> tuple[float, dict[str, Any]]:
    """The learning rate, and how it was chosen where there are several."""
    if len(config.rates) == 1:
        return config.rates[0], {}
    rest, held = validation_split(train.labels, validation, seed)
    part, aside = train.subset(rest), train.subset(held)

    def score(rate: float) -> tuple[float, float]:
        return goodness(_descend(part, config, rate, seed).scores(aside.features), aside)

    choice = choose("rate", config.rates, score, held, seed)
    return choice.value, choice.protocol


def classification_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy; binary, over the labels that count, where images show several classes."""
    if labels.ndim == 1:
        return cross_entropy(scores, labels)
    counted = (labels >= 0).to(scores.dtype)
    present = (labels > 0).to(scores.dtype)
    lost = binary_cross_entropy_with_logits(scores, present, counted, reduction="sum")
    # The mean over images of the sum over classes: as large as a cross-entropy is.
    return lost / len(labels)


def _descend(train: Features, config: DescentConfig, rate: float, seed: int) -> Classifier:
    """Train from zero; nothing is read on the host."""
    n, width = train.features.shape
    weight = train.features.new_zeros(width, train.count).requires_grad_()
    bias = train.features.new_zeros(train.count).requires_grad_()
    batching = Batching(n, min(config.batch_size, n), seed, drop_last=False)
    optimizer: torch.optim.Optimizer
    if config.optimizer == "sgd":
        rate = rate * batching.batch_size / 256
        optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.Adam([weight, bias], rate)
    steps, step = config.epochs * len(batching), 0
    with torch.enable_grad():
        for epoch in range(config.epochs):
            order = batching.order(epoch).to(train.features.device)
            for low, high in batching.bounds():
                chosen = order[low:high]
                if config.cosine:
                    optimizer.param_groups[0]["lr"] = (
                        rate * (1 + math.cos(math.pi * step / steps)) / 2
                    )
                optimizer.zero_grad()
                scores = torch.addmm(bias, train.features[chosen], weight)
                classification_loss(scores, train.labels[chosen]).backward()
                optimizer.step()
                step += 1
    return Classifier(weight.detach(), bias.detach())
