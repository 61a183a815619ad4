"""How much of the gradient survives rounding, by margin: cross_entropy, softplus form, FlatNCE.

    python benchmarks/precision/run.py            writes results.json beside this file
    python benchmarks/precision/figure.py         draws it

The reference is each objective's own gradient in float64, from its formula, at the same rounded
logits or embeddings, so the error is that of the arithmetic and not of rounding the input.
"""

import argparse
import json
from pathlib import Path

import torch

from flatnce import functional as F
from flatnce.pretrain.runs.log import environment

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NEGATIVES = (1, 31, 255)
MARGINS = [0.5 * step for step in range(81)]
LOSS_SCALE = 2.0**15
TEMPERATURE, WIDTH, BATCH = 0.05, 128, 64
COSINES = [0.05 * step for step in range(21)]


def losses(dtype, device):
    """Functions of logits whose first column is the positive; sums, so that rows do not mix."""

    def cross_entropy(logits):
        return torch.nn.functional.cross_entropy(logits, first(logits), reduction="sum")

    def cross_entropy_autocast(logits):
        with torch.autocast(device, dtype=dtype):
            return cross_entropy(logits)

    def cross_entropy_float32(logits):
        return cross_entropy(logits.float())

    def softplus(logits):
        return F.infonce(F.contrast_from_logits(logits, first(logits)), reduction="sum")

    def flatnce(logits):
        return F.cross_entropy(logits, first(logits), reduction="sum")

    ours = {"softplus": softplus, "flatnce": flatnce}
    if dtype == torch.float32:
        return {"cross_entropy": cross_entropy, **ours}
    mixed = (cross_entropy, cross_entropy_autocast, cross_entropy_float32)
    return {function.__name__: function for function in mixed} | ours


def embedding_losses(dtype, device):
    """The same from two views' embeddings; torch's own as a SimCLR script writes it."""

    def script(z1, z2, name):
        z = torch.nn.functional.normalize(torch.cat([z1, z2]))
        logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
        if name == "cross_entropy_float32":
            logits = logits.float()
        target = torch.arange(len(z), device=z.device).roll(len(z1))
        return torch.nn.functional.cross_entropy(logits, target, reduction="sum")

    def of(name):
        def loss(z1, z2):
            if name in ("softplus", "flatnce"):
                objective = F.infonce if name == "softplus" else F.flatnce
                return objective(F.contrast_of(F.two_view(z1, z2), TEMPERATURE), reduction="sum")
            with torch.autocast(device, dtype=dtype, enabled=name == "cross_entropy_autocast"):
                return script(z1, z2, name)

        return loss

    return {name: of(name) for name in losses(dtype, device)}


def first(logits):
    """Targets that all name the first column."""
    return torch.zeros(len(logits), dtype=torch.long, device=logits.device)


def gradients(loss, *inputs, scale=1.0):
    """Gradient in float64, as returned in the inputs' own dtype."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    (loss(*leaves).double() * scale).backward()
    return [leaf.grad.double() / scale for leaf in leaves]


def exact(logits, name):
    """The gradient of the logits in float64, from the formula."""
    positive, negatives = logits.double().split([1, logits.shape[1] - 1], dim=1)
    gap = negatives.logsumexp(dim=1, keepdim=True) - positive
    gain = torch.ones_like(gap) if name == "flatnce" else gap.sigmoid()
    return torch.cat([-gain, gain * negatives.softmax(dim=1)], dim=1)


def exact_from_embeddings(z1, z2, name):
    """The gradient of the embeddings in float64, by autograd from the definition of the gap."""

    def loss(z1, z2):
        z = torch.nn.functional.normalize(torch.cat([z1, z2]))
        scores, own = z @ z.T / TEMPERATURE, torch.eye(len(z1), device=z.device).repeat(2, 2) > 0
        positive = scores.diagonal(len(z1)).repeat(2)
        gap = scores.masked_fill(own, -torch.inf).logsumexp(dim=1) - positive
        return gap.sum() if name == "flatnce" else torch.nn.functional.softplus(gap).sum()

    return gradients(loss, z1.double(), z2.double())


def logits_experiment(dtype, device, seeds, rows):
    """One record per number of negatives and loss; lists run over the margins."""
    records = []
    for m in NEGATIVES:
        for name, loss in losses(dtype, device).items():
            points = []
            for margin in MARGINS:
                batches = [make_logits(seed, rows, m, margin) for seed in seeds]
                points.append(compare(loss, name, [b.to(device, dtype) for b in batches]))
            record = {key: [point[key] for point in points] for key in points[0]}
            shares = zip(*record.pop("zero_shares"), strict=True)
            record["zero_from"] = [zero_from(of_a_seed) for of_a_seed in shares]
            records.append({"negatives": m, "loss": name, **record})
    return records


def compare(loss, name, batches):
    """Errors over the rows of all seeds, and each seed's share of exact zeros."""
    found = torch.cat([gradients(loss, logits)[0] for logits in batches])
    expected = torch.cat([exact(logits, name) for logits in batches])
    zero = found[:, 0].reshape(len(batches), -1) == 0

    def error(columns):
        difference = (found - expected)[:, columns].norm(dim=1)
        return percentiles(difference / expected[:, columns].norm(dim=1))

    return {
        "positive_error": error(slice(0, 1)),
        "negative_error": error(slice(1, None))[1],
        "whole_error": error(slice(None))[1],
        "size": percentiles(found[:, 0].abs())[1],
        "zero_shares": zero.double().mean(dim=1).tolist(),
    }


def make_logits(seed, rows, m, margin):
    """Normal negatives, and a positive that is ``margin`` above the hardest of them."""
    generator = torch.Generator().manual_seed(seed)
    negatives = torch.randn(rows, m, generator=generator, dtype=torch.float64)
    return torch.cat([negatives.amax(dim=1, keepdim=True) + margin, negatives], dim=1)


def percentiles(values):
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=values.dtype, device=values.device)
    return [float(f"{value:.3g}") for value in values.quantile(levels).tolist()]


def zero_from(shares):
    """The margin beyond which the positive gradient of most rows is exactly 0; None if never."""
    alive = [margin for margin, share in zip(MARGINS, shares, strict=True) if share <= 0.5]
    beyond = [margin for margin in MARGINS if not alive or margin > alive[-1]]
    return beyond[0] if beyond else None


def loss_scale_experiment(device, seeds, rows, m=31):
    """float16 with the loss multiplied first, as a gradient scaler does: where zeros begin."""
    logits = [
        make_logits(seeds[0], rows, m, margin).to(device, torch.float16) for margin in MARGINS
    ]
    found = {}
    for name in ("cross_entropy_autocast", "softplus"):
        loss = losses(torch.float16, device)[name]
        zero = [gradients(loss, values, scale=LOSS_SCALE)[0] == 0 for values in logits]
        found[name] = {
            "positive": zero_from([here[:, 0].double().mean().item() for here in zero]),
            "negatives": zero_from([here[:, 1:].double().mean().item() for here in zero]),
        }
    return found


def embeddings_experiment(dtype, device, seeds):
    """Relative error of the embeddings' gradient: one value per seed, lists over the cosines."""
    records = []
    for name, loss in embedding_losses(dtype, device).items():
        errors, sizes = [], []
        for cosine in COSINES:
            here = []
            for seed in seeds:
                views = [z.to(device, dtype) for z in make_views(seed, cosine)]
                found = torch.cat(gradients(loss, *views))
                expected = torch.cat(exact_from_embeddings(*views, name))
                error = (found - expected).norm() / expected.norm()
                here.append([error.item(), found.norm(dim=1).mean().item()])
            errors.append(spread([error for error, _ in here]))
            sizes.append(spread([size for _, size in here]))
        records.append({"loss": name, "error": errors, "size": sizes})
    return records


def make_views(seed, cosine):
    """Unit rows; each second view has the given cosine with its first."""
    generator = torch.Generator().manual_seed(seed)
    z1, noise = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float64)
    z1 = torch.nn.functional.normalize(z1)
    across = torch.nn.functional.normalize(noise - (noise * z1).sum(dim=1, keepdim=True) * z1)
    return z1, cosine * z1 + (1 - cosine**2) ** 0.5 * across


def spread(values):
    ordered = sorted(values)
    chosen = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    return [float(f"{value:.3g}") for value in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=400, help="rows of logits a seed")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small for several threads
    seeds, device = list(range(options.seeds)), options.device
    results = {
        "environment": environment(seeds, device),
        "rows": options.rows,
        "margins": MARGINS,
        "loss_scale": LOSS_SCALE,
        "scores": [cosine / TEMPERATURE for cosine in COSINES],
        "logits": {
            name: logits_experiment(dtype, device, seeds, options.rows)
            for name, dtype in DTYPES.items()
        },
        "loss_scaled": loss_scale_experiment(device, seeds, options.rows),
        "embeddings": {
            name: embeddings_experiment(dtype, device, seeds) for name, dtype in DTYPES.items()
        },
    }
    options.out.write_text(json.dumps(results, separators=(",", ":")) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
