"""The compared methods: this package's loss and other implementations of the same gradient.

A method takes two (b, d) tensors and returns a scalar. The layouts: ``one`` direction of two
towers (row i of the left against every row of the right), ``both`` directions, and ``simclr``
(anchors = keys, an anchor left out of its own row). Code of peers is imported, not copied: from
installed packages, or from the folder given as ``--peers``.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, normalize

import flatnce
from flatnce import functional as F
from flatnce.core.contrast import contrast_of_batches
from flatnce.core.diagnostics import Monitor, Snapshot

TEMPERATURE = 0.125  # scaling bfloat16 rows by 8 rounds nothing
BETA = 1 / TEMPERATURE
LAYOUTS = ("one", "both", "simclr")
NARROWEST = 16
"""Columns of FlexAttention's values, which are not used: the smallest number it accepts."""


@dataclass(frozen=True)
class Method:
    """A way to compute a loss.

    Arguments:
        name: Its name in the table.
        kind: ``ours`` or ``peer``.
        make: Builds the step for a layout; may raise if the method is not installed.
        layouts: The layouts that it supports.
        objective: The loss whose gradient it computes: ``infonce`` or ``flatnce``.
        normalises: Whether it normalises rows itself.
        most_rows: The largest number of rows that is tried; None for no limit.
        quadratic: Bytes per score that it holds at once; 0 if memory is linear in the rows.
        reads_device: It waits for the device, so it cannot be recorded as a CUDA graph.
        compiles: It is compiled for each width and layout, which is slow.
    """

    name: str
    kind: str
    make: Callable[[str], Callable]
    layouts: tuple[str, ...] = LAYOUTS
    objective: str = "infonce"
    normalises: bool = False
    most_rows: int | None = None
    quadratic: int = 0
    reads_device: bool = False
    compiles: bool = False


# ---- ours


def by_pairs(z1, z2, layout, kernel, normalise):
    """The contrast by way of a layout's Pairs, the path for labels, queues and masks."""
    if layout == "simclr":
        pairs = F.two_view(z1, z2, normalize=normalise)
    else:
        directions = "left" if layout == "one" else "both"
        pairs = F.two_tower(z1, z2, directions=directions, normalize=normalise)
    first = pairs[0] if isinstance(pairs, tuple) else pairs
    contrast = F.contrast_of(pairs, TEMPERATURE, kernel=kernel)
    return contrast, first.anchors[: len(z1)].detach()


def straight(z1, z2, layout, kernel, normalise):
    """The contrast as objectives compute it: from raw rows if the kernel can, else by pairs."""
    form = {"one": "left", "both": "both", "simclr": "views"}[layout]
    options = {"layout": form, "normalize": normalise, "kernel": kernel}
    found = contrast_of_batches(z1, z2, TEMPERATURE, **options)
    return by_pairs(z1, z2, layout, kernel, normalise) if found is None else found


def ours_on_unit_rows(kernel, way, ess, layout):
    """InfoNCE's gradient of rows that already have unit norm, as the peers expect."""

    def step(z1, z2):
        contrast, _ = way(z1, z2, layout, kernel, False)
        if ess:
            F.effective_sample_size(contrast.detach())
        return F.infonce(contrast)

    return step


def ours_as_called(kernel, diagnostics, layout):
    """The public call, normalisation included; with diagnostics all that a Monitor accumulates."""
    monitor = Monitor()
    form = "two_view" if layout == "simclr" else "two_tower"
    loss_fn = flatnce.FlatNCE(TEMPERATURE, layout=form, kernel=kernel)

    def one_direction(z1, z2):  # the module only computes both directions
        contrast, rows = straight(z1, z2, layout, kernel, True)
        loss = F.flatnce(contrast)
        if diagnostics:
            monitor.update(Snapshot(contrast.detach(), loss.detach(), rows.detach(), "FlatNCE"))
        return loss

    def step(z1, z2):
        loss = loss_fn(z1, z2)
        if diagnostics:
            monitor.update(loss_fn.last)
        return loss

    return one_direction if layout == "one" else step


# ---- plain torch, eager and compiled


def plain(layout):
    """The usual code: the product in the inputs' bfloat16, then torch's cross-entropy."""

    def one(z1, z2):
        logits = z1 @ z2.T * BETA
        return cross_entropy(logits, torch.arange(len(z1), device=z1.device))

    def both(z1, z2):
        logits = z1 @ z2.T * BETA
        target = torch.arange(len(z1), device=z1.device)
        return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2

    def simclr(z1, z2):
        z = torch.cat([z1, z2])
        own = torch.eye(len(z), dtype=torch.bool, device=z.device)
        logits = (z @ z.T * BETA).masked_fill(own, -torch.inf)
        return cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z1)))

    return {"one": one, "both": both, "simclr": simclr}[layout]


def compiled(layout):
    return torch.compile(plain(layout), dynamic=False)


# ---- FlexAttention as a log-sum-exp


def flex(layout):
    """The log-sum-exp that FlexAttention returns beside its output; torch differentiates it."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def without_self(score, batch, head, row, column):
        return torch.where(row == column, -torch.inf, score)

    def rows(left, right, positive_of, modify=None):
        q, k = left[None, None], right[None, None]
        v = k[..., :NARROWEST].detach()
        asked = AuxRequest(lse=True)
        out, aux = flex_attention(q, k, v, score_mod=modify, scale=BETA, return_aux=asked)
        positive = BETA * (left.float() * positive_of.float()).sum(1)
        # torch 2.11 cannot compile the gradient if the output itself is not used.
        return (aux.lse[0, 0] - positive).mean() + 0.0 * out.float().sum()

    def one(z1, z2):
        return rows(z1, z2, z2)

    def both(z1, z2):
        return (rows(z1, z2, z2) + rows(z2, z1, z1)) / 2

    def simclr(z1, z2):
        z = torch.cat([z1, z2])
        return rows(z, z, z.roll(len(z1), 0), without_self)

    return torch.compile({"one": one, "both": both, "simclr": simclr}[layout], dynamic=False)


# ---- packages of peers


def towers(one_direction, layout):
    """A loss of one direction, and the mean of both."""
    if layout == "one":
        return one_direction
    return lambda z1, z2: (one_direction(z1, z2) + one_direction(z2, z1)) / 2


def inf_cl(layout):
    flash = importlib.import_module("inf_cl.flash")

    def one(z1, z2):
        width = min(z1.shape[1], 256)
        return flash.cal_flash_loss(z1, z2, scale=BETA, head_dim=width).mean()

    return towers(one, layout)


def cut_cross_entropy(layout):
    """Without its filter, which drops small probabilities: here all are small."""
    loss = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def one(z1, z2):
        target = torch.arange(len(z1), device=z1.device)
        return loss(z1 * BETA, z2, target, filter_eps=None, impl="cce")

    return towers(one, layout)


def liger(layout):
    """Keys as the weights of a last layer; gradients are made in the forward pass."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    function = module.LigerFusedLinearCrossEntropyFunction

    def one(z1, z2):
        return function.apply(z1 * BETA, z2, torch.arange(len(z1), device=z1.device))[0]

    return towers(one, layout)


def lightly(name, layout):
    return getattr(importlib.import_module("lightly.loss"), name)(temperature=TEMPERATURE)


TOWERS = ("one", "both")
PEERS = (
    Method("plain torch", "peer", plain, quadratic=6),
    Method("torch.compile", "peer", compiled, quadratic=4, compiles=True),
    Method("Inf-CL (Triton)", "peer", inf_cl, TOWERS),
    Method("Cut Cross-Entropy (Triton)", "peer", cut_cross_entropy, TOWERS, reads_device=True),
    Method("Liger fused linear CE", "peer", liger, TOWERS, reads_device=True),
    Method("FlexAttention lse", "peer", flex, compiles=True),
    Method(
        "lightly NTXentLoss",
        "peer",
        functools.partial(lightly, "NTXentLoss"),
        ("simclr",),
        normalises=True,
        quadratic=6,
        reads_device=True,
    ),
    Method(
        "lightly DCLLoss",
        "peer",
        functools.partial(lightly, "DCLLoss"),
        ("simclr",),
        "flatnce",
        normalises=True,
        quadratic=6,
        reads_device=True,
    ),
)

KERNELS = {"fused": None, "chunked": 65_536, "dense": 16_384}
"""This package's kernels, and the largest number of rows for each."""


def ours(kernel, everything=True):
    """The methods of one kernel; ratios are relative to the first."""
    options = {"kind": "ours", "most_rows": KERNELS[kernel]}
    options["quadratic"] = 16 if kernel == "dense" else 0
    bind = functools.partial
    unit, called = bind(ours_on_unit_rows, kernel), bind(ours_as_called, kernel)
    public = {"objective": "flatnce", "normalises": True, **options}
    found = [
        Method(f"{kernel}: unit rows, ESS", make=bind(unit, straight, True), **options),
        Method(f"{kernel}: FlatNCE, Monitor", make=bind(called, True), **public),
    ]
    if everything:
        found += [
            Method(f"{kernel}: unit rows, no ESS", make=bind(unit, straight, False), **options),
            Method(f"{kernel}: FlatNCE, no Monitor", make=bind(called, False), **public),
            Method(
                f"{kernel}: unit rows by Pairs, ESS", make=bind(unit, by_pairs, True), **options
            ),
        ]
    return found


# ---- the reference


def exact_gradient(z1, z2, layout, method):
    """The gradient in float64 of what a method computes, by autograd from the dense definition."""
    leaves = [z.detach().double().requires_grad_() for z in (z1, z2)]
    left, right = (normalize(z, dim=1) if method.normalises else z for z in leaves)

    def rows(anchors, keys, positive_of, out):
        scores = BETA * anchors @ keys.T
        positive = BETA * (anchors * positive_of).sum(1)
        gap = scores.masked_fill(out, -torch.inf).logsumexp(dim=1) - positive
        return gap if method.objective == "flatnce" else torch.nn.functional.softplus(gap)

    own = torch.eye(len(z1), dtype=torch.bool, device=z1.device)
    if layout == "simclr":
        z = torch.cat([left, right])
        losses = rows(z, z, z.roll(len(z1), 0), own.repeat(2, 2))
    else:
        losses = rows(left, right, right, own)
        if layout == "both":
            losses = torch.cat([losses, rows(right, left, left, own)])
    losses.mean().backward()
    return [leaf.grad for leaf in leaves]
