"""Train for a few steps eagerly and compiled, and print the results of both as JSON.

    python tests/compiled_step.py BACKEND CASE...

A script of its own because torch.compile with fullgraph=True cannot trace the shape checks that
pytest hooks into flatnce. Every case compiles the forward pass, the objective and the monitor's
update as one graph, so that what the step writes (β, a queue, totals) is written inside it.
"""

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from flatnce import DCL, EssController, FlatNCE, KeyQueue, LearnedTemperature, Monitor
from flatnce.core.control import Cosine
from flatnce.core.objectives.base import Objective

BATCH, WIDTH = 10, 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def queue() -> KeyQueue:
    """A queue that is full, small enough for every step to overwrite what it has just read."""
    found = KeyQueue(BATCH, WIDTH).double()
    keys = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    found.enqueue(keys, torch.arange(BATCH))
    return found


# A rate of a third moves β so far in a step that a gradient at the wrong β cannot be overlooked.
CASES: dict[str, Callable[[], Objective]] = {
    "dense": lambda: FlatNCE(temperature=EssController(0.5, rate=0.3), kernel="dense"),
    "chunked": lambda: FlatNCE(temperature=EssController(0.5, rate=0.3), kernel="chunked"),
    "scheduled queue": lambda: FlatNCE(
        temperature=Cosine(1.0, 0.05, steps=4), queue=queue(), in_batch=False, kernel="chunked"
    ),
    "queue and batch": lambda: FlatNCE(queue=queue(), in_batch=True, kernel="dense"),
    "learned towers": lambda: DCL(temperature=LearnedTemperature(0.2), layout="two_tower"),
    "whole step": lambda: FlatNCE(temperature=EssController(0.5, rate=0.3), kernel="dense"),
    "fused": lambda: FlatNCE(temperature=0.2, kernel="fused"),
}


def train(case: str, backend: str = "") -> dict[str, object]:
    """Plain gradient descent on fresh pairs, eager without a backend; returns the results."""
    torch.manual_seed(0)
    fused = case == "fused"  # takes float32 only, and is slow in Triton's interpreter
    kind = {"dtype": torch.float32 if fused else torch.float64}
    place_of = {**kind, "device": DEVICE if fused else "cpu"}
    encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, WIDTH)).to(**place_of)
    loss_fn, monitor = CASES[case](), Monitor(rows=BATCH)
    parameters = [*encoder.parameters(), *loss_fn.parameters()]

    def forward(x1: Tensor, x2: Tensor, ids: Tensor | None) -> Tensor:
        loss = loss_fn(encoder(x1), encoder(x2), ids=ids)
        monitor.update(loss_fn.last)
        return loss

    def whole(x1: Tensor, x2: Tensor, ids: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss = forward(x1, x2, ids)
        return loss.detach(), torch.autograd.grad(loss, parameters)

    if case == "whole step":  # a private setting: without it torch refuses a gradient in a graph
        torch._dynamo.config.trace_autograd_ops = True
    step = eager = whole if case == "whole step" else forward
    if backend:
        step = torch.compile(step, fullgraph=True, backend=backend)
    # The first step, in which the monitor learns the width, is a graph of its own. Inductor takes
    # half a minute a graph, so there it is left out.
    alone = backend == "inductor"
    draw, losses = torch.Generator().manual_seed(1), []
    for place in range(3 if fused else 5):
        run = eager if alone and place == 0 else step
        x1, noise = (torch.randn(BATCH, 12, generator=draw, **kind) for _ in range(2))
        x1, x2 = (x.to(**place_of) for x in (x1, x1 + 0.3 * noise))
        # Half of the samples of a step were in the step before, and so are in the queue.
        ids = torch.arange(BATCH) + BATCH // 2 * (place + 1) if loss_fn.queue is not None else None
        if case == "whole step":
            loss, gradients = run(x1, x2, ids)
        else:
            loss = run(x1, x2, ids)
            gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
        losses.append(loss.item())
    state = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    state |= {f"loss.{name}": value for name, value in loss_fn.state_dict().items()}
    last = loss_fn.last
    return {
        "losses": losses,
        "monitor": monitor.compute(),
        "last": [last.loss.item(), last.ess.item(), last.mi.item(), last.temperature.item()],
        **{name: value.double().flatten().tolist() for name, value in state.items()},
    }


def main(backend: str, *cases: str) -> None:
    """Both ways for every case."""
    found = {}
    for case in cases:
        torch.compiler.reset()
        counters.clear()
        found[case] = {
            "eager": train(case),
            "compiled": train(case, backend),
            "breaks": sum(counters["graph_break"].values()),
            "graphs": counters["stats"]["unique_graphs"],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
