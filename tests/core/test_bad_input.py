"""Bad input: a ValueError that names the argument, the value and the remedy. Never a silent NaN.

Values are checked at once on the CPU. Where that would force a host read (compiled, on a GPU) they
are flagged on the device and raised by the next reading; here that path is forced.
"""

import json
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import flatnce
from flatnce import DCL, DHEL, EssController, FlatNCE, FlatNCEPlus, HolderFlatNCE, InfoNCE, Monitor
from flatnce import functional as F
from flatnce.core import control, faults
from flatnce.core.contrast import inverse_temperature
from flatnce.core.pairs import Arguments, KeyQueue
from forked import run_forked

NAN, INF = math.nan, math.inf
Call = Callable[[], object]
MODULES = {m.__name__: m for m in (InfoNCE, DCL, FlatNCE, FlatNCEPlus, HolderFlatNCE)}
every_module = pytest.mark.parametrize("module", list(MODULES.values()), ids=list(MODULES))


def rows(b: int = 4, d: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(b, d, generator=torch.Generator().manual_seed(seed))


def with_row(value: float | list[float], row: int = 2, like: Tensor | None = None) -> Tensor:
    z = (rows() if like is None else like).clone()
    z[row] = torch.tensor(value)
    return z


def with_entry(value: float, row: int = 2) -> Tensor:
    z = rows()
    z[row, 1] = value
    return z


def full_queue(dim: int = 3) -> KeyQueue:
    queue = KeyQueue(6, dim)
    queue.enqueue(rows(6, dim, seed=9))
    return queue


def yes(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


class Constant:
    """A schedule whose values nothing checks before a step."""

    def __init__(self, value: float) -> None:
        self.value = value

    def at(self, step: Tensor) -> Tensor:
        return torch.full((), self.value)


def refuses(call: Call, *parts: str) -> None:
    """The call raises a ValueError whose message holds every part."""
    with pytest.raises(ValueError) as raised:
        call()
    message = str(raised.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{message!r} does not say {missing}"


def refused(*cases: tuple[str, ...]) -> pytest.MarkDecorator:
    """One test per case: a call as it is typed, and what its message must say."""
    found = [(case[0], case[1:]) for case in cases]
    return pytest.mark.parametrize(("call", "parts"), found, ids=[case[0] for case in cases])


UNKNOWN = """
import flatnce
typed = "FlatNCE(tau=0.1)", "InfoNCE(temprature=0.1)", "HolderFlatNCE(gama=2)", "SigLIP(tau=1)"
for call in typed:
    try:
        eval(f"flatnce.{call}")
    except TypeError as error:
        print(error)
"""
OPTIONS = "layout, form, queue, in_batch, gather, normalize, kernel, temperature_gradient"


def test_an_argument_that_an_objective_does_not_have_is_named_with_those_that_it_has():
    assert run_forked(UNKNOWN).splitlines() == [
        f"FlatNCE has no argument 'tau'; it takes temperature, value, {OPTIONS}",
        "InfoNCE has no argument 'temprature'; did you mean 'temperature'? "
        f"it takes temperature, {OPTIONS}",
        "HolderFlatNCE has no argument 'gama'; did you mean 'gamma'? "
        f"it takes temperature, gamma, {OPTIONS}",
        f"SigLIP has no argument 'tau'; it takes temperature, bias, {OPTIONS}",
    ]


LISTS = """
import torch
from flatnce import DHEL, EssController, FlatNCE, KeyQueue, SigLIP
held, z = EssController(0.3), torch.eye(4)
losses = [FlatNCE(layout="two_tower"), FlatNCE(held, layout="two_tower"), FlatNCE(held), SigLIP()]
losses += [DHEL(held), FlatNCE(held, kernel="dense"), FlatNCE(queue=KeyQueue(8, 4))]
for loss_fn in losses:
    for wrong in (z.tolist(), z.numpy()):
        try:
            loss_fn(wrong, z)
        except ValueError as error:
            print(error)
"""


def test_a_list_or_an_array_in_place_of_a_tensor_is_named_by_every_path():
    said = [f"z1 has type {kind}; pass a torch.Tensor" for kind in ("list", "ndarray")]
    assert run_forked(LISTS).splitlines() == 7 * said


# Names that the calls of the tables use.
NAMES = {
    **{name: getattr(F, name) for name in F.__all__},
    "read": lambda pairs: F.contrast_of(pairs, 0.1),
    "read_at": lambda temperature: F.contrast_of(F.two_view(rows(), rows()), temperature),
    "z": rows(),
    "ones": torch.ones(4).long(),
    "zeros": torch.zeros(4).long(),
    "labels": torch.tensor([0, 1, 0, 1]),
    "arange": torch.arange,
    "tensor": torch.tensor,
    "flatnce": flatnce,
    "control": control,
    "Arguments": Arguments,
}


def typed(call: str, **names: object) -> None:
    """Run a call of a table."""
    eval(call, {**globals(), **NAMES, **names})


# Calls as they are typed, and what their messages must say.
REFUSED = [
    # Arguments of a layout.
    ("multi_view([z])", "views has 1", "at least two"),
    ("multi_view([z, z, rows(3)])", "z3 has shape (3, 3)", "z1 (4, 3)", "agree"),
    ("with_queue(z, z, full_queue(2))", "query has width 3", "width 2", "agree"),
    ("two_view(z, z, negatives=rows(4, 2))", "negatives has width 2", "width 3"),
    ("two_view(z, z, negatives=torch.ones(3))", "negatives has shape (3,)", "(batch, width)"),
    (
        "two_view(z, z, negatives=torch.ones(5, 2, 3))",
        "negatives has shape (5, 2, 3)",
        "(4, negatives, width)",
    ),
    (
        "two_tower(z, z, negatives=torch.ones(2, 3).long())",
        "negatives has dtype torch.int64",
        "floating-point",
    ),
    (
        "two_view(z, z, negatives=torch.ones(4, 0, 3))",
        "negatives has shape (4, 0, 3)",
        "(batch, negatives, width), not empty",
    ),
    ("two_view(z, z, negatives=z.to('meta'))", "negatives has width 3 on meta", "3 on cpu"),
    (
        "Arguments(True, False).same_batch('z2', z.to('meta'), 'z1', z)",
        "z2 is torch.float32 on meta",
        "z1 torch.float32 on cpu",
        "one device",
    ),
    ("KeyQueue(4, 3).to('meta').keys_and_bias(z)", "query has width 3 on cpu", "3 on meta"),
    ("two_view(z, z, ids=arange(5))", "ids has shape (5,)", "(4,)"),
    ("two_view(z, z, ids=yes(4))", "ids has shape (4,) and dtype torch.bool", "integer"),
    (
        "multi_view([z] * 3, ids=torch.zeros(4))",
        "ids has shape (4,) and dtype torch.float32",
        "integer",
    ),
    (
        "two_view(z, z, ids=tensor([-2 ** 31, 1, 2, 3]))",
        "ids holds -2147483648",
        "reserved",
        "shift",
    ),
    ("labelled(z, arange(3))", "labels has shape (3,)", "(4,)"),
    ("two_view(z, z, false_negatives=yes(8, 8))", "false_negatives", "(8, 8)", "(4, 4)"),
    (
        "two_tower(z, z, false_negatives=torch.ones(4, 4))",
        "false_negatives has dtype torch.float32",
        "boolean",
    ),
    (
        "with_queue(z, z, full_queue(), false_negatives=yes(4, 4))",
        "false_negatives",
        "in_batch=True",
    ),
    ("labelled(z, zeros, form='each')", "form='each'", "out, in"),
    # A row without a negative, or a batch without a positive.
    ("two_view(rows(1), rows(1))", "z1 has 1 row", "at least 2"),
    ("own_view(rows(1), rows(1))", "z1 has 1 row", "at least 2"),
    ("two_tower(rows(1), rows(1), directions='left')", "left has 1 row"),
    ("two_tower(rows(1), rows(1), negatives=z)", "left has 1 row", "directions='left'"),
    ("uniformity(rows(1))", "x has 1 rows; uniformity needs at least two"),
    ("labelled(rows(1), torch.zeros(1).long())", "z has 1 row", "at least"),
    (
        "read(two_view(z, z, false_negatives=yes(4, 4)))",
        "row 0: an anchor has no negative",
        "false_negatives",
    ),
    (
        "read(two_tower(z, z, false_negatives=(arange(4) == 2).repeat(4, 1).T))",
        "row 2: an anchor has no negative",
        "false_negatives",
    ),
    ("read(labelled(z, zeros))", "row 0: an anchor has no negative", "labels"),
    (
        "read(labelled(z, arange(4)))",
        "no anchor has a positive",
        "at least two rows of some label",
    ),
    ("read(queue_of_one_id())", "row 1: an anchor has no negative", "ids"),
    (
        "importance_weights(two_view(z, z, ids=zeros), 0.1)",
        "row 0: an anchor has no negative",
        "ids",
    ),
    (
        "contrast_from_logits(tensor([[1.0, 2.0], [1.0, -INF]]), tensor([0, 0]))",
        "row 1: an anchor has no negative",
    ),
    # Bad values.
    ("two_view(z, z, negatives=with_entry(NAN))", "negatives: row 2"),
    ("two_view(z, z, negatives=with_row(0.0))", "negatives: row 2", "zero vector"),
    ("KeyQueue(5, 3).enqueue(with_entry(NAN))", "keys: row 2", "nan"),
    (
        "KeyQueue(5, 6).enqueue(tensor([[0.123456, NAN, 2, 3, 4, 5]]))",
        "row 0 begins [0.1235, nan, 2.0, 3.0]: ",
    ),
    ("read(spoiled_queue())", "row 0: the embeddings", "hold NaN"),
    (
        "read(two_view(3e+18 * z, 3e+18 * z, normalize=False))",
        "row 0: the embeddings",
        "overflowing",
    ),
    (
        "cross_entropy(with_entry(INF), zeros)",
        "row 2: the embeddings, or the logits (input), hold NaN",
        "infinite",
        "(input)",
    ),
    (
        "cross_entropy(with_entry(INF), ones)",
        "row 2: the embeddings, or the logits (input), hold NaN",
        "infinite",
    ),
    # Powers, kernels and learned temperatures.
    ("read_at(torch.ones(2))", "temperature has shape (2,)", "zero-dimensional"),
    ("read_at(tensor(1))", "temperature has shape () and dtype torch.int64", "zero-dimensional"),
    (
        "FlatNCE(EssController(Constant(1.5)))(z, rows(seed=1))",
        "target=1.5 of EssController is not in (0, 1]",
    ),
    ("FlatNCE(layout='two_tower', form='out')(z, z)", "two_tower"),
    ("FlatNCE(layout='two_tower', queue=KeyQueue(4, 3))(z, z)", "two_tower"),
    ("FlatNCE(layout='two_tower')(z, z, labels=labels)", "layout='two_view'"),
    ("cross_entropy(torch.zeros(2, 3), tensor([-100, -100]))", "only ignore_index"),
    ("cross_entropy(torch.zeros(1, 3), tensor([-100]), reduction='sum')", "only ignore_index"),
    ("cross_entropy(torch.zeros(1, 3), tensor([-100]), reduction='none')", "only ignore_index"),
    ("contrast_of(two_view(z, z), 0.1, power=NAN)", "power=nan", "real number"),
    ("HolderFlatNCE(gamma=NAN)", "gamma=nan", "real number"),
    # Options of an objective, when it is built.
    ("FlatNCE(kernel='fast')", "kernel='fast'", "auto, dense, chunked, fused"),
    ("FlatNCE(layout='three')", "layout='three'", "two_view, two_tower, own_view"),
    ("FlatNCE(1e-30)(z, rows(seed=1))", "temperature=1e-30", "positive finite"),
    ("contrast_of(two_view(z, z), 0.1, kernel='fast')", "kernel='fast'", "auto, dense, chunked"),
    ("flatnce.LearnedTemperature(0.001)", "start=0.001", "lowest=0.01"),
    ("flatnce.LearnedTemperature(0.1, lowest=0.0)", "lowest=0.0 must", "positive"),
    ("flatnce.LearnedTemperature(highest=INF)", "highest=inf must be a positive finite"),
    # Controllers and schedules.
    ("EssController(0.5, rate=1.0)", "rate=1.0", "(0, 1)"),
    (
        "EssController(0.5, temperature_at_start=1000000000.0)",
        "temperature_at_start=1000000000.0",
        "highest=1000.0",
    ),
    ("control.Cosine(0.6, 0.2, steps=0)", "steps=0", "at least 1"),
    ("EssController(0.5, highest=INF)", "must lie between lowest="),
    # Queues.
    ("KeyQueue(0, 3)", "size=0", "at least 1"),
    ("KeyQueue(4, 0)", "dim=0", "at least 1"),
    ("KeyQueue(4, 3).enqueue(rows(4, 2))", "keys has width 2", "width 3"),
    ("KeyQueue(4, 3).enqueue(torch.ones(3))", "keys has shape (3,)", "batch"),
    ("KeyQueue(4, 3).enqueue(rows(2), arange(3))", "ids has shape (3,)", "(2,)"),
    (
        "KeyQueue(4, 3).enqueue(rows(2), tensor([0, -2 ** 31 + 1]))",
        "ids holds -2147483647",
        "reserved",
    ),
    # Logits and targets.
    ("cross_entropy(z, tensor([0, 1, 3, 0]))", "row 2: target names a class", "[0, classes)"),
    (
        "contrast_from_logits(z, tensor([0, 1, 2, 9]))",
        "row 3: target names a class",
        "[0, classes)",
    ),
    ("cross_entropy(with_entry(-INF), ones)", "row 2: target names a class", "-inf"),
    (
        "cross_entropy(torch.zeros(2, 1), tensor([0, -100]))",
        "row 0: an anchor has no negative",
        "(input)",
    ),
    ("cross_entropy(torch.zeros(0, 3), tensor([]).long())", "logits (input)", "shape (0, 3)"),
    ("cross_entropy(z, z.softmax(dim=1))", "target has dtype torch.float32", "class indices"),
    ("cross_entropy(z, zeros, label_smoothing=0.1)", "label_smoothing=0.1", "0.0"),
    ("cross_entropy(z, torch.zeros(5).long())", "target has shape (5,)", "(4, 3)", "(4,)"),
    ("cross_entropy(tensor(1.0), tensor(0))", "input of shape ()"),
    (
        "cross_entropy(torch.ones(4, 3).long(), zeros)",
        "logits (input) has dtype torch.int64",
        "floating-point",
    ),
    ("cross_entropy(z, zeros, torch.ones(4))", "weight has shape (4,)", "(3,)"),
    ("contrast_from_logits(torch.ones(3), tensor(0))", "logits", "(rows, classes)"),
    ("contrast_from_logits(z, torch.zeros(4))", "target has dtype torch.float32", "class index"),
]


@refused(*REFUSED)
def test_a_bad_call_is_refused(call, parts):
    refuses(lambda: typed(call), *parts)


# Every layout as a function of its two embeddings, and what it calls them.
LAYOUTS: dict[str, tuple[Callable[..., object], str, str]] = {
    "two_view": (F.two_view, "z1", "z2"),
    "two_tower": (F.two_tower, "left", "right"),
    "multi_view": (lambda a, b, **k: F.multi_view([a, b, rows()], **k), "z1", "z2"),
    "with_queue": (lambda a, b, **k: F.with_queue(a, b, full_queue(), **k), "query", "key"),
    "with_queue, in batch": (
        lambda a, b, **k: F.with_queue(a, b, full_queue(), in_batch=True, **k),
        "query",
        "key",
    ),
    "objective": (lambda a, b, **k: FlatNCE(**k)(a, b), "z1", "z2"),
    "objective, towers": (
        lambda a, b, **k: FlatNCE(layout="two_tower", **k)(a, b),
        "left",
        "right",
    ),
    "objective, queue": (
        lambda a, b, **k: FlatNCE(queue=full_queue(), in_batch=False, **k)(a, b),
        "query",
        "key",
    ),
}
every_layout = pytest.mark.parametrize(
    ("layout", "first", "second"), list(LAYOUTS.values()), ids=list(LAYOUTS)
)


# --- Shapes and types of embeddings --------------------------------------------------------------


# Embeddings, and what the message says after their name.
BAD_EMBEDDINGS = [
    (torch.ones(4), " has shape (4,)", "(batch, width)"),
    (torch.ones(4, 3, 1), " has shape (4, 3, 1)", "(batch, width)"),
    (torch.ones(0, 3), " has shape (0, 3)", "(batch, width)"),
    (torch.ones(4, 3).long(), " has dtype torch.int64", "floating-point"),
    (torch.ones(4, 3).cfloat(), " has dtype torch.complex64", "floating-point"),
    (with_entry(NAN), ": row 2", "NaN, infinite or overflowing", "learning rate"),
    (with_entry(-INF), ": row 2", "-inf", "learning rate"),
    (with_row(3e38), ": row 2", "NaN, infinite or overflowing"),
    (with_row(0.0), ": row 2 begins [0.0, 0.0, 0.0]", "zero vector", "normalize=False"),
    (with_row(1e-19), ": row 2 begins [1e-19, 1e-19, 1e-19]", "its norm is inexact"),
]


@every_layout
@pytest.mark.parametrize("case", BAD_EMBEDDINGS, ids=lambda case: case[1])
def test_bad_embeddings_are_refused(layout, first, second, case):
    bad, after, *parts = case
    refuses(lambda: layout(bad, rows()), f"{first}{after}", *parts)
    refuses(lambda: layout(rows(), bad), f"{second}{after}", *parts)


@every_layout
def test_embeddings_that_disagree_are_refused(layout, first, second):
    for shape in ((5, 3), (4, 2)):
        bad = rows(*shape)
        refuses(lambda b=bad: layout(rows(), b), second, str(shape), "(4, 3)", "agree")
    refuses(lambda: layout(rows(), rows().double()), second, "float64", "float32", "precision")


@pytest.mark.parametrize("objective", [FlatNCE, InfoNCE, DCL])
def test_an_infinite_positive_is_refused_though_its_loss_would_be_finite(objective):
    z = rows() * torch.tensor([0.0, 1.0, 1.0])  # the large row meets zeros in the others
    large = with_row([1e20, 0.0, 0.0], like=z)
    refuses(lambda: objective(normalize=False)(large, large), "row 2", "overflowing")


# --- No negatives, no positives ------------------------------------------------------------------


def queue_of_one_id() -> F.Pairs:
    queue = KeyQueue(6, 3)
    queue.enqueue(rows(6), torch.full((6,), 8))
    return F.with_queue(rows(2), rows(2), queue, ids=torch.tensor([7, 8]))


def spoiled_queue() -> F.Pairs:
    queue = full_queue()
    queue.keys[3] = NAN
    return F.with_queue(rows(), rows(), queue)


# --- Temperature, power, kernel ------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -0.1, NAN, INF, -INF])
@pytest.mark.parametrize(
    "use",
    [
        lambda t: F.contrast_of(F.two_view(rows(), rows()), t),
        lambda t: F.importance_weights(F.two_view(rows(), rows()), t),
    ],
    ids=["contrast_of", "importance_weights"],
)
@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_a_temperature_that_is_not_positive_and_finite_is_refused(use, kind, value):
    refuses(lambda: use(kind(value)), "temperature", f"{value:g}", "positive finite", "clamp")


# --- ESS targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.0, -0.2, 1.01, NAN, INF])
@pytest.mark.parametrize(
    "use",
    [EssController, partial(F.temperature_for_ess, F.two_view(rows(), rows(seed=1)))],
    ids=["EssController", "temperature_for_ess"],
)
def test_an_ess_target_outside_its_range_is_refused(use, target):
    refuses(lambda: use(target), f"target={target}", "(0, 1]")


@every_module
@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_control_of_the_ess_of_one_negative_is_refused(module, kernel):
    loss_fn = module(temperature=EssController(target=0.3), layout="two_tower", kernel=kernel)
    call = partial(loss_fn, rows(2), rows(2, seed=1))
    refuses(
        call, "target=0.3 of EssController", "no anchor has two negatives", "use more negatives"
    )


@every_module
@pytest.mark.parametrize("value", [0.0, -1.0, NAN])
def test_a_module_refuses_a_temperature_out_of_range(module, value):
    refuses(lambda: module(temperature=value), f"temperature={value}", "positive finite")
    for temperature in (torch.tensor(value), Constant(value)):
        loss_fn = module(temperature=temperature)
        refuses(lambda f=loss_fn: f(rows(), rows()), "temperature", f"{value:g}", "positive")


@every_module
def test_a_refused_batch_changes_nothing(module):
    queue = full_queue()
    loss_fn = module(queue=queue)
    before = {name: value.clone() for name, value in queue.state_dict().items()}
    refuses(lambda: loss_fn(rows(), with_entry(NAN)), "key: row 2")
    assert all(torch.equal(value, before[name]) for name, value in queue.state_dict().items())
    assert loss_fn(rows(), rows(seed=1)).isfinite() and loss_fn.last.ess.isfinite()


# --- Modules -------------------------------------------------------------------------------------

BAD_CALLS = [
    ("f(z, rows(5))", "z2 has shape (5, 3)", "(4, 3)", "agree"),
    ("f(z.long(), z)", "z1 has dtype torch.int64"),
    ("f(rows(1), rows(1))", "z1 has 1 row", "at least 2"),
    ("f(z, with_entry(NAN))", "z2: row 2", "nan", "learning rate"),
    ("f(with_row(0.0), z)", "z1: row 2", "zero vector"),
    ("f(z)", "z2 is missing", "labels"),
    ("f(z, z, false_negatives=yes(4, 4))", "row 0: an anchor has no negative", "larger batch"),
    ("f(z, z, ids=torch.ones(3).long())", "ids has shape (3,)"),
    ("f(z, z, negatives=rows(2, 5))", "negatives has width 5"),
    ("f(z, labels=torch.ones(4))", "labels", "integer"),
    ("f(z, rows(4, 2), labels=labels)", "z2 has shape (4, 2)", "(4, 3)"),
    (
        "f(z, z, labels=labels, false_negatives=yes(4, 3))",
        "false_negatives has shape (4, 3)",
        "(4, 4)",
    ),
    ("f(z, labels=labels, ids=ones)", "labels cannot be combined with ids"),
    ("f(z, labels=labels[:3])", "labels has shape (3,)", "(4,)"),
    ("f(z, labels=arange(4))", "no anchor has a positive"),
    ("m(torch.ones(3))", "temperature has shape (3,)", "one number"),
    # What the layout cannot hold.
    ("m(queue=full_queue())(z, labels=labels)", "queue, and use layout='two_view'"),
    ("m(queue=full_queue())(z, z, labels=labels)", "labels cannot be combined", "queue"),
    (
        "m(layout='two_tower')(z, z, labels=labels)",
        "labels cannot be combined",
        "layout='two_view'",
    ),
    ("m(queue=full_queue())(z, z, z)", "3 views", "queue"),
    ("m(queue=full_queue(2))(z, z)", "query has width 3", "2"),
    # As many keys as columns, and as many columns as rows.
    ("m(queue=KeyQueue(3, 4))(z, z)", "query has width 3", "width 4"),
    ("m(queue=KeyQueue(3, 4), in_batch=False)(z, z)", "query has width 3", "width 4"),
    ("m(queue=full_queue())(z)", "z2 is missing"),
    ("m(queue=KeyQueue(5, 3), in_batch=False)(z, z)", "row 0: an anchor has no negative", "queue"),
    ("m(layout='two_tower')(z, z, z)", "3 views", "two_view"),
    ("m(layout='two_tower')(z, rows(5))", "right has shape (5, 3)", "left"),
]


def test_dhel_does_not_send_labels_to_a_layout_that_it_refuses():
    refuses(lambda: DHEL()(rows(), rows(), labels=torch.arange(4) // 2), "labels", "with DHEL")


@every_module
@refused(*BAD_CALLS)
def test_a_module_refuses_what_its_function_refuses(module, call, parts):
    refuses(lambda: typed(call, f=module(), m=module), *parts)


# --- Where a host read is not free: flagged, and raised by the next reading ----------------------


# A fault, a call that has it, and the options of the objective.
LATE: list[tuple[str, str, dict[str, object]]] = [
    ("nonfinite", "f(z, with_entry(NAN))", {}),
    ("nonfinite", "f(with_entry(-INF), z)", {}),
    ("nonfinite", "f(3e18 * z, 3e18 * z)", {"normalize": False}),
    ("nonfinite", "f(z, z, negatives=with_entry(NAN))", {}),
    ("zero_vector", "f(with_row(0.0), z)", {}),
    ("zero_vector", "f(with_row(1e-19), z)", {}),
    ("nonfinite", "f(with_row(3e38), z)", {}),
    ("no_negatives", "f(z, z, false_negatives=yes(4, 4))", {}),
    ("no_negatives", "f(z, z, ids=ones)", {}),
    ("no_negatives", "f(z, z, ids=ones)", {"layout": "two_tower"}),
    ("no_negatives", "f(z, labels=ones)", {}),
    ("no_negatives", "f(z, z)", {"queue": 5}),
    ("no_positives", "f(z, labels=arange(4))", {}),
    ("ids", "f(z, z, ids=tensor([0, 1, 2, -(2**31) + 5]))", {}),
    ("temperature", "f(z, z)", {"temperature": 0.0}),
    ("temperature", "f(z, z)", {"temperature": NAN}),
    (
        "ess_target",
        "f(z[:2], rows(2, seed=1))",
        {"temperature": EssController(target=0.1), "layout": "two_tower"},
    ),
]
every_late_fault = pytest.mark.parametrize(("fault", "call", "options"), LATE)


def late_module(module: Callable[..., object], options: dict[str, object]) -> object:
    """The module with its options; bad temperatures as tensors, queues fresh."""
    chosen = dict(options)
    if isinstance(chosen.get("temperature"), float):
        chosen["temperature"] = torch.tensor(chosen["temperature"])
    if "queue" in chosen:
        chosen |= {"queue": KeyQueue(chosen["queue"], 3), "in_batch": False}
    return module(**chosen)


READINGS = (
    "ess",
    "ess_paper",
    "ess_with_positive",
    "gain",
    "mi",
    "mi_ceiling",
    "saturated",
    "top1",
)


@every_late_fault
@every_module
def test_a_deferred_fault_is_raised_by_the_next_reading(deferred, module, fault, call, options):
    loss_fn, monitor = late_module(module, options), Monitor()
    typed(call, f=loss_fn)
    monitor.update(loss_fn.last)
    refuses(monitor.compute, f"{faults.FAULTS[fault]} ({fault})")
    for reading in READINGS:
        refuses(partial(getattr, loss_fn.last, reading), f"{faults.FAULTS[fault]} ({fault})")


@pytest.mark.parametrize(
    ("fault", "logits", "target"),
    [
        ("target", rows(), torch.tensor([0, 1, 2, 3])),
        ("target", rows(), torch.tensor([0, 1, 2, -1])),
        ("target", with_entry(-INF), torch.tensor([0, 1, 1, 0])),
        ("nonfinite", with_entry(NAN), torch.zeros(4).long()),
        ("nonfinite", with_entry(INF), torch.zeros(4).long()),
        ("no_negatives", with_row([0.0, -INF, -INF]), torch.zeros(4).long()),
    ],
    ids=["too large", "negative", "masked", "NaN", "infinity", "no negative"],
)
def test_a_deferred_fault_of_logits_is_raised_by_the_monitor(deferred, fault, logits, target):
    monitor = Monitor()
    monitor.update(F.contrast_from_logits(logits, target))
    refuses(monitor.compute, f"{faults.FAULTS[fault]} ({fault})")


@pytest.mark.parametrize(
    ("logits", "target"),
    [
        (torch.zeros(2, 3), [0, 3]),
        (torch.tensor([[0.0, -math.inf], [0.0, 1.0]]), [1, 0]),
        (torch.tensor([[0.0, -math.inf], [0.0, 1.0]]), [0, 0]),
        (torch.zeros(2, 3), [-100, -100]),
    ],
    ids=["out of range", "masked", "no negative", "all ignored"],
)
def test_cross_entropy_asserts_where_it_cannot_raise(deferred, logits, target):
    with pytest.raises(RuntimeError, match="bad target, or no negative"):
        F.cross_entropy(logits, torch.tensor(target), torch.ones(logits.shape[1]))


def test_the_smallest_temperature_is_above_1e_minus_30():
    beta, _ = inverse_temperature(1.5e-30, torch.device("cpu"), torch.float32)
    assert float(beta) == pytest.approx(1 / 1.5e-30)
    refuses(
        lambda: inverse_temperature(1e-30, torch.device("cpu"), torch.float32), "temperature=1e-30"
    )


def test_a_bad_key_of_a_queue_is_raised_where_the_queue_is_read(deferred):
    queue = KeyQueue(5, 3)
    queue.enqueue(rows())
    assert faults.flagged(queue.faults) == []
    queue.enqueue(with_entry(NAN))
    queue.enqueue(rows(seed=1))
    assert faults.flagged(queue.faults) == ["nonfinite"]
    assert faults.flagged(F.with_queue(rows(), rows(), queue).faults) == ["nonfinite"]
    assert queue.keys.isfinite().all()  # the bad key was overwritten, and may have been read
    for options in ({}, {"in_batch": False}, {"kernel": "dense"}):
        loss_fn = FlatNCE(queue=queue, **options)
        loss_fn(rows(), rows(seed=1))
        refuses(lambda f=loss_fn: f.last.ess, "nonfinite")


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2**-63), (torch.float64, 2**-511)])
@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_the_smallest_norm_is_eight_times_the_root_of_the_smallest_number(dtype, least, kernel):
    assert least**2 == torch.finfo(dtype).tiny
    loss_fn = FlatNCE(kernel=kernel)
    for factor in (7.9, 8.0, 8.1):
        z = rows().to(dtype)
        z[2] = torch.tensor([factor * least, 0.0, 0.0], dtype=dtype)
        if factor >= 8:
            assert loss_fn(z, rows(seed=1).to(dtype)).isfinite()
        else:
            refuses(lambda z=z: loss_fn(z, rows(seed=1).to(dtype)), "z1: row 2", "inexact")


def test_one_value_that_cannot_be_read_now_defers_all(monkeypatch):
    there, here = torch.tensor([False, True]), torch.tensor([True, False])
    monkeypatch.setattr(faults, "can_raise_now", lambda tensor: tensor is here)
    found = faults.raise_or_flag(nonfinite=here, zero_vector=there)
    assert faults.flagged(found) == ["nonfinite", "zero_vector"]


def test_nothing_is_read_on_the_host_while_compiling_or_in_a_transform(monkeypatch):
    z, seen = rows(), []
    torch.func.vmap(
        lambda row: seen.append((faults.is_transformed(row), faults.can_raise_now(row))) or row
    )(z)
    assert seen == [(True, False)]
    with forward_ad.dual_level():
        assert faults.is_transformed(z)
    assert (faults.is_transformed(z), faults.can_raise_now(z), faults.must_not_read(z)) == (
        False,
        True,
        False,
    )
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert (faults.is_transformed(z), faults.can_raise_now(z), faults.must_not_read(z)) == (
        True,
        False,
        True,
    )


def test_one_bad_batch_among_good_ones_is_remembered_until_the_monitor_is_read(deferred):
    loss_fn, monitor = FlatNCE(), Monitor()
    refuses(lambda: loss_fn(rows(), rows(5)), "z2 has shape (5, 3)")  # shapes at once even so
    for z2 in (rows(seed=1), with_entry(NAN), rows(seed=2)):
        loss_fn(rows(), z2)
        monitor.update(loss_fn.last)
    assert loss_fn.last.ess.isfinite()
    refuses(monitor.compute, "nonfinite")
    monitor.reset()
    loss_fn(rows(), rows(seed=1))
    monitor.update(loss_fn.last)
    assert math.isfinite(monitor.compute()["ess"])


@pytest.mark.parametrize("fault", list(faults.FAULTS))
def test_every_fault_says_what_to_do(fault):
    flags = faults.flag(**{fault: torch.tensor(True)})
    refuses(lambda: faults.raise_flagged(flags), fault, faults.FAULTS[fault])
    assert ";" in faults.FAULTS[fault]  # what is wrong; what to do about it


# What users type by mistake, and what the message says.
SLIPS = [
    ("Monitor().update(FlatNCE()(z, z))", "last has type Tensor; pass loss_fn.last"),
    ("F.flatnce(z, z)", "contrast has type Tensor; pass contrast_of"),
    ("F.infonce(z)", "contrast has type Tensor; pass contrast_of"),
    ("F.dcl(z)", "contrast has type Tensor; pass contrast_of"),
    ("F.flatnce_plus(z)", "contrast has type Tensor; pass contrast_of"),
    ("FlatNCE(value='one')", "value='one' is unknown"),
    ("FlatNCE(queue=z)", "queue has type Tensor; pass a flatnce.KeyQueue"),
    ("FlatNCE()(z, labels=[0, 1, 2])", "labels has type list"),
    ("FlatNCE()(z, torch.arange(3))", "and labels and ids by keyword"),
    ("F.cross_entropy(torch.arange(3), z)", "they look swapped"),
    ("F.cross_entropy(z.numpy(), torch.arange(3))", "input has type ndarray"),
    (
        "FlatNCE(EssController(0.3), layout='two_tower')(z[:2], z[:2])",
        "target=0.3 of EssController cannot be held: no anchor has two negatives",
    ),
    ("FlatNCE()(z, z, false_negatives=[])", "false_negatives has type list; pass a torch.Tensor"),
    ("FlatNCE()(z, z, negatives=[])", "negatives has type list; pass a torch.Tensor"),
    ("FlatNCE()(z, labels=torch.tensor([0, 0, 1]), negatives=[])", "negatives has type list"),
    ("F.cross_entropy(z, torch.arange(3), [1.0, 1.0, 1.0])", "weight has type list"),
    ("F.contrast_from_logits([[1.0, 0.0]], torch.tensor([0]))", "logits has type list"),
    ("F.contrast_from_logits(z, [0, 1, 2])", "target has type list"),
    ("F.contrast_of(z, 0.1)", "pairs is not from a layout; pass pairs such as two_view"),
    ("F.contrast_of((), 0.1)", "pairs is not from a layout"),
    ("F.contrast_of((z, z), 0.1)", "pairs is not from a layout"),
    ("F.importance_weights(F.two_view(z, z), 0.1, power=INF)", "power=inf is not finite"),
    ("F.importance_weights(F.two_view(z, z), 0.1, power=-INF)", "power=-inf is not finite"),
    ("F.alignment(z, z[:1])", "x has shape (3, 3) and y (1, 3); pass equal shapes"),
    ("F.temperature_for_ess(F.two_view(z, z), '0.3')", "target='0.3' is not an ESS"),
    ("EssController(0.3, rate='a')", "rate='a' must lie in (0, 1)"),
    ("EssController(0.3, rate=None)", "rate=None must lie in (0, 1)"),
    ("EssController(0.3, rate=True)", "rate=True must lie in (0, 1)"),
    ("EssController(0.3, lowest='a')", "and highest=1000.0, all positive and finite"),
    (
        "EssController(0.3, temperature_at_start=None)",
        "temperature_at_start=None must lie between",
    ),
    ("EssController(0.3, highest=torch.ones(2))", "highest=tensor([1., 1.]), all positive"),
    ("EssController(Cosine(0.3, 1.5, 10))", "end=1.5, steps=10) is not an ESS; pass a number"),
    ("Cosine('a', 0.1, 10)", "start='a' must be a positive finite number"),
    ("Cosine(0.3, 0.0, 10)", "end=0.0 must be a positive finite number"),
    ("Cosine(0.3, 0.1, 'a')", "steps='a' must be at least 1, a finite number"),
    ("Cosine(0.3, 0.1, INF)", "steps=inf must be at least 1, a finite number"),
    ("Monitor('a')", "rows='a' must be 0"),
    ("Monitor(2.5)", "rows=2.5 must be 0"),
    ("F.multi_view([z, z, z], form='all')", "form"),
    ("F.two_tower(z, z, directions='right')", "directions"),
    ("F.importance_weights(F.two_tower(z, z), 0.1)", "one direction"),
    ("KeyQueue(2.5, 3)", "size"),
    ("F.contrast_of(F.two_view(z, z), '0.1')", "temperature"),
    ("FlatNCE(temperature_gradient='mine')", "temperature_gradient='mine' is unknown"),
    ("FlatNCE(form='all')", "form='all' is unknown"),
    ("FlatNCE(temperature='0.1')", "temperature='0.1' has type str; pass a number"),
    ("FlatNCE(torch.tensor(2))(z, z)", "temperature has shape () and dtype torch.int64"),
    ("FlatNCE(1)(z[:1], z[:1])", "z1 has 1 row"),  # a whole number is a temperature
    ("F.flatnce(F.contrast_of(F.two_view(z, z), 0.1), value='one')", "value"),
    ("F.temperature_for_ess(F.two_view(z, z), 0.3, estimator='raw')", "estimator"),
    ("F.dcl(F.contrast_of(F.two_view(z, z), 0.1), reduction='max')", "reduction"),
    ("FlatNCE(layout='two_tower')(z[:1], z[:1], negatives=z)", "directions='left'"),
    ("FlatNCE(gather='yes')", "gather='yes' is unknown; choose one of True, False"),
    ("FlatNCE(normalize=2)", "normalize=2 is unknown"),
    ("FlatNCE(in_batch=None)", "in_batch=None is unknown"),
    ("LearnedTemperature('0.1')", "start='0.1' must be a positive finite number"),
    ("LearnedTemperature(z[0, 0])", "start=tensor(1.) must be a positive finite number"),
    ("FlatNCE(True)", "temperature=True has type bool; pass a number"),
    ("HolderFlatNCE(gamma='a')", "gamma='a' is not a number; pass a real number"),
    ("HolderFlatNCE(gamma=torch.zeros(2))", "gamma=tensor([0., 0.]) is not a number"),
    ("Monitor().compute(step='a')", "step='a' must be a whole number"),
]


@pytest.mark.parametrize(("call", "said"), SLIPS)
def test_a_common_slip_is_named(call, said, slips_said):
    assert said in slips_said[call]


@pytest.fixture(scope="module")
def slips_said() -> dict[str, str]:
    """What each slip says; one process without the shape checks for all of them."""
    code = f"""
import json, torch
from flatnce import EssController, FlatNCE, HolderFlatNCE, KeyQueue, LearnedTemperature, Monitor
from flatnce import functional as F
from flatnce.core.control import Cosine

z, INF, said = torch.eye(3), float("inf"), {{}}
for call in {[call for call, _ in SLIPS]!r}:
    try:
        eval(call)
    except ValueError as error:
        said[call] = str(error)
print(json.dumps(said))
"""
    return json.loads(run_forked(code))
