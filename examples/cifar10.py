"""Pretrain a ResNet-18 on CIFAR-10 with small batches and no temperature to tune.

The whole program is in this file, from top to bottom: data, views, encoder, loss, training loop
and a kNN evaluation. `flatnce train cifar10` does the same with CUDA graphs, checkpoints and a
report; read this first, and copy it if you want a loop of your own.

    flatnce data cifar10                  # once: fetch the data set
    python examples/cifar10.py            # one GPU
    python examples/cifar10.py --data digits --backbone small --epochs 5    # seconds on a CPU
"""

import argparse
import math
import time

import torch

from flatnce import EssController, FlatNCE, Monitor
from flatnce.pretrain import Encoder, Resident, Views, backbone, extract, head, knn_predict, load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", default="cifar10", choices=["cifar10", "cifar100", "digits"])
parser.add_argument("--root", help="data sets (default: $FLATNCE_DATA, else ~/.cache/flatnce)")
parser.add_argument("--backbone", default="resnet18")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--ess", type=float, default=0.075, help="effective sample size to hold")
parser.add_argument("--rate", type=float, default=0.24, help="learning rate at batch 256")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default=None, help="file for the backbone's weights")


def main(options: argparse.Namespace) -> float:
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = torch.bfloat16 if device == "cuda" else torch.float32

    # -- data ----------------------------------------------------------------------------------
    # The images stay on the device as bytes: CIFAR-10 is 150 MB.
    train_set = load(options.data, "train", options.root).to(device)
    test_set = load(options.data, "test", options.root).to(device)
    channels, size, _ = train_set.shape
    batches = Resident(train_set, options.batch_size, options.seed)

    # Two random views per image, drawn and rendered on the device in one call. A mirrored digit
    # is not a digit, and 8 pixels do not survive a small crop.
    if options.data == "digits":
        augmentation = {"crop": (0.85, 1.0), "flip": 0.0, "jitter": 0.0, "grayscale": 0.0}
    else:
        augmentation = {"crop": (0.2, 1.0)}
    views = Views(size, seed=options.seed, **augmentation)

    # -- model ---------------------------------------------------------------------------------
    # The projection head is used in training only; the backbone's features are what is kept.
    body = backbone(options.backbone, size=size, channels=channels)
    encoder = Encoder(body, head(body.width, layers=2, out=128)).to(device)
    if device == "cuda":
        encoder = encoder.to(memory_format=torch.channels_last)

    # -- loss ----------------------------------------------------------------------------------
    # FlatNCE's gradient does not vanish when every positive is found. The controller moves the
    # temperature so that the negatives' weights keep the given effective sample size.
    loss_fn = FlatNCE(temperature=EssController(target=options.ess))
    monitor = Monitor()

    # -- optimizer -----------------------------------------------------------------------------
    decayed = [weight for weight in encoder.parameters() if weight.ndim > 1]
    others = [weight for weight in encoder.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}],
        lr=options.rate * options.batch_size / 256,
        momentum=0.9,
        nesterov=True,
    )
    steps = options.epochs * len(batches)
    warmup = max(1, steps // 100)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)),
    )

    # -- training ------------------------------------------------------------------------------
    start = time.perf_counter()
    for epoch in range(options.epochs):
        encoder.train()
        for indices, images, _labels in batches.epoch(epoch):
            pair = views(images, indices, epoch, dtype=precision, channels_last=device == "cuda")
            with torch.autocast(device, precision, enabled=device == "cuda"):
                _features, embeddings = encoder(pair.flatten(0, 1))  # both views in one batch
            z1, z2 = embeddings.chunk(2)
            loss = loss_fn(z1, z2)

            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            monitor.update(loss_fn.last)  # stays on the device

        # The only host read of the epoch: mean diagnostics, and a verdict in words.
        numbers = monitor.compute(step=(epoch + 1) * len(batches))
        speed = (epoch + 1) * len(batches) * options.batch_size / (time.perf_counter() - start)
        print(
            f"epoch {epoch + 1:3d}  loss {numbers['loss']:.3f}  "
            f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f}  ESS {numbers['ess']:.2f}  "
            f"gain {numbers['gain']:.2f}  temperature {numbers['temperature']:.3f}  "
            f"{speed:,.0f} images/s"
        )
    print(monitor.verdict())

    # -- evaluation ----------------------------------------------------------------------------
    # Frozen features of the backbone, classified by their nearest training images.
    known = extract(body, train_set, size=size)
    asked = extract(body, test_set, size=size)
    predicted = knn_predict(known, asked.features, k=20)
    accuracy = (predicted == asked.labels).float().mean().item()
    print(f"kNN (k = 20) accuracy on the {len(test_set):,} test images: {accuracy:.2%}")

    if options.out:
        torch.save(body.state_dict(), options.out)
    return accuracy


if __name__ == "__main__":
    main(parser.parse_args())
