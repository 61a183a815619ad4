"""The registry of objectives is complete, and every objective in it keeps the family's promises.

For each step of adding an objective that was left out, a test here fails and names the file.
"""

import inspect
import math
import re

import pytest
import torch

import flatnce
import reference
from flatnce import Monitor
from flatnce import functional as F
from flatnce.core import pairs
from flatnce.core.diagnostics import verdict_on
from flatnce.core.diagnostics.registry import DIAGNOSTICS, FUNCTIONS
from flatnce.core.objectives import losses, registry
from flatnce.core.objectives.base import LAYOUTS, Objective
from flatnce.core.objectives.registry import (
    OBJECTIVES,
    Setting,
    entry_of,
    ess_target,
    learns_scale,
)
from flatnce.pretrain import preset
from flatnce.pretrain.page.run import CHARTS
from flatnce.pretrain.training.config import LossConfig
from flatnce.pretrain.training.learner import build_objective
from flatnce.toml_files import read_entries
from layouts import random
from paths import ROOT

BASE = "src/flatnce/core/objectives/base.py"
LOSSES = "src/flatnce/core/objectives/losses.py"
REGISTRY = "src/flatnce/core/objectives/objectives.toml"
FUNCTIONAL = "src/flatnce/functional.py"
MEASURES = "src/flatnce/core/diagnostics/registry.py"
PAGE = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")

every_entry = pytest.mark.parametrize("entry", list(OBJECTIVES.values()), ids=list(OBJECTIVES))


# --- Complete ------------------------------------------------------------------------------------


@every_entry
def test_an_entry_is_complete(entry):
    made = getattr(losses, entry.class_name, None)
    assert made is not None, f"write the class {entry.class_name} into {LOSSES}"
    assert issubclass(made, Objective)
    assert entry.layout in LAYOUTS, f"LAYOUTS in {BASE} lacks {entry.layout}"
    for name in filter(None, (entry.class_name, entry.function)):
        assert name in losses.__all__, f"__all__ in {LOSSES} lacks {name}"
    if entry.function:
        assert entry.function in F.__all__, f"{FUNCTIONAL}, TYPE_CHECKING, lacks {entry.function}"
        assert getattr(F, entry.function) is getattr(losses, entry.function)
    name = entry.class_name
    line = f"    from flatnce.core.objectives.losses import {name} as {name}\n"
    text = (ROOT / "src" / "flatnce" / "__init__.py").read_text(encoding="utf-8")
    assert line in text, f"src/flatnce/__init__.py, TYPE_CHECKING, lacks {line}"
    assert getattr(flatnce, entry.class_name) is made
    assert entry.class_name in reference.DEFINITIONS, (
        f"define {entry.class_name} by loops in tests/reference.py and add it to DEFINITIONS"
    )
    first = f"| `{entry.class_name}` | `--objective {entry.name}` | {entry.summary} |"
    assert first in PAGE, f"run docs/reference/generate.py: docs/objectives.md lacks {first}"
    second = re.compile(rf"^\| `{entry.class_name}\b(?!.*--objective)", re.MULTILINE)
    needed = f"| `{entry.class_name}` | value | gradient | reference |"
    assert second.search(PAGE), f"docs/objectives.md lacks, in its second table, {needed}"
    assert re.fullmatch(r"[a-z][a-z-]*", entry.name), f"name={entry.name!r} in {REGISTRY}"
    assert entry.label and entry.summary.endswith("."), f"see {REGISTRY}"


@every_entry
def test_own_settings_are_keywords_of_the_class_and_build_it_from_a_config(entry):
    keywords = inspect.signature(getattr(losses, entry.class_name)).parameters
    for setting in entry.settings:
        assert isinstance(setting, Setting)
        assert setting.name in keywords, f"{entry.class_name} in {LOSSES} lacks {setting.name}"
        assert keywords[setting.name].default == setting.default
        assert getattr(LossConfig(), setting.name) == setting.default
    settings = {setting.name: setting.default + 1.0 for setting in entry.settings}
    objective = build_objective(LossConfig(objective=entry.name, **settings), steps=10)
    assert type(objective).__name__ == entry.class_name


def test_every_class_has_an_entry():
    classes = {
        name
        for name, value in vars(losses).items()
        if inspect.isclass(value) and issubclass(value, Objective) and value is not Objective
        if not name.startswith("_") and not inspect.isabstract(value)
    }
    missing = classes - {entry.class_name for entry in OBJECTIVES.values()}
    assert not missing, f"add entries for these classes to {REGISTRY}"


def test_a_table_without_a_key_is_named_with_its_file():
    with pytest.raises(TypeError, match=rf"{REGISTRY.removeprefix('src/')}, \[flatnce\]: "):
        read_entries(registry.__file__, "objectives.toml", Setting)


def test_functional_has_the_functions_of_pairs_and_of_the_registry():
    missing = [name for name in F.__all__ if not hasattr(F, name)]
    assert not missing, f"import these in {FUNCTIONAL}"
    functions = {
        name
        for name, value in vars(pairs).items()
        if inspect.isfunction(value) and value.__module__ == pairs.__name__
        if "Pairs" in str(inspect.signature(value).return_annotation)
    }
    missing = functions - set(pairs.__all__)
    assert not missing, "list these in the __all__ of src/flatnce/core/pairs.py"
    missing = functions - set(F.__all__)
    assert not missing, f"import these in {FUNCTIONAL}"
    of_contrasts = {name for name in F.__all__ if name in losses.__all__} - {"cross_entropy"}
    missing = of_contrasts - {entry.function for entry in OBJECTIVES.values()}
    assert not missing, f"give these as function in {REGISTRY}"


def test_names_are_unique():
    names = [
        name.casefold()
        for entry in OBJECTIVES.values()
        for name in {entry.name, entry.class_name.casefold(), *entry.other_names}
    ]
    assert len(names) == len(set(names))


@every_entry
def test_the_layout_is_that_of_the_class(entry):
    loss_fn = made(entry)
    assert entry.layout == loss_fn.layout.name, f"layout of {entry.name} in {REGISTRY}"
    for b in (5, 8):
        loss_fn(*views(b))
        found = loss_fn.last.contrast.count.unique().tolist()
        assert found == [entry.negatives(b)], f"negatives_per_sample of {entry.name} in {REGISTRY}"


@every_entry
def test_the_class_says_as_the_entry_whether_the_scale_is_learned(entry):
    loss_fn = made(entry)
    assert entry.learns_scale is loss_fn.learns_scale, f"learns_scale of {entry.name}"
    if entry.learns_scale:
        with pytest.raises(ValueError, match=f"{entry.class_name} learns its own scale"):
            loss_fn.temperature = flatnce.EssController(0.3)
    else:
        loss_fn.temperature = flatnce.EssController(0.3)


@every_entry
def test_the_gradient_of_a_positive_that_wins_lives_as_the_entry_says(entry):
    z = (torch.eye(4) - 0.25).double()
    leaf = (z + 0.02 * random(4, 4, seed=1)).requires_grad_()
    loss_fn = getattr(flatnce, entry.class_name)(0.02).double()
    (gradient,) = torch.autograd.grad(loss_fn(leaf, z), leaf)
    lives = bool(gradient.norm() > 1e-3)
    assert lives is entry.gradient_lives, f"gradient_lives of {entry.name} in {REGISTRY}"


@pytest.mark.parametrize(
    "page", ["temperature.md", "explain/effective-sample-size.md", "reference/config.md"]
)
def test_a_page_recommends_the_ess_target_of_each_objective(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in ("FlatNCE", "InfoNCE"):
        assert set(re.findall(rf"([\d.]+) for {name}\b", text)) == {str(ess_target(name))}
    assert (
        "CIFAR-10" in text
        and "images" in text
        and not re.search(r"recommends 0|0\.2 to 0\.4", text)
    )


def test_the_preset_and_the_example_hold_the_ess_target_of_flatnce():
    assert preset("small-batch").loss.ess == ess_target("flatnce")
    program = (ROOT / "examples" / "cifar10.py").read_text(encoding="utf-8")
    assert f'"--ess", type=float, default={ess_target("flatnce")},' in program


TARGET = re.compile(r"(?:\bess=|EssController\((?:target=)?)(0\.\d+)")


@pytest.mark.parametrize(
    "path", ["docs/from-lightning.md", "docs/from-transformers.md", "examples/from_lightning.py"]
)
def test_examples_of_flatnce_hold_its_ess_target(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert set(TARGET.findall(text)) == {str(ess_target("flatnce"))}


@pytest.mark.parametrize("page", ["from-sentence-transformers.md", "tutorials/text-pairs.md"])
def test_pages_about_text_recommend_no_ess_target(page):
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    measured = r"benchmarks/sentence_pairs\.md\) FlatNCE was better with a tuned scale than with"
    assert re.search(measured + r" every (ESS )?target", text)
    assert not re.search(r"\bess=0", text)


def test_every_name_of_an_objective_says_whether_its_gradient_lives():
    for entry in OBJECTIVES.values():
        for name in (entry.name, entry.class_name.upper(), *entry.other_names):
            assert entry_of(name).gradient_lives is entry.gradient_lives
    assert entry_of("MyOwnLoss").gradient_lives is False
    assert entry_of("FlatNCE").gradient_lives and not entry_of("InfoNCE").gradient_lives


def test_every_name_of_an_objective_says_in_any_case_whether_its_scale_is_learned():
    for entry in OBJECTIVES.values():
        for name in (entry.name, entry.class_name, *entry.other_names):
            learned = entry.learns_scale or name in entry.scaled_by_model
            assert {learns_scale(one) for one in (name, name.lower(), name.upper())} == {learned}


# --- Diagnostics ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list({**DIAGNOSTICS, **FUNCTIONS}))
def test_a_diagnostic_is_complete(name):
    entry = DIAGNOSTICS.get(name)
    assert entry, f"src/flatnce/core/diagnostics/diagnostics.toml lacks [{name}]"
    elsewhere = ("objective_loss", "uniformity", "effective_rank")
    assert name in (*FUNCTIONS, *elsewhere), f"FUNCTIONS in {MEASURES} lacks {name}"
    assert entry.label and entry.description.endswith(".")
    assert not entry.line or f"{{{name}:" in entry.line
    assert entry.unit in ("", "nats", "share")
    page = (ROOT / "docs" / "reference" / "log-keys.md").read_text(encoding="utf-8")
    section = page.split("\n## Monitor\n")[1].split("\n## ")[0]
    row = f"| `{name}` | {entry.description[:-1]} | range | reads like |"
    assert f"| `{name}` |" in section, f"docs/reference/log-keys.md, ## Monitor, lacks {row}"
    drawn = {key for chart in CHARTS for key in (*chart.keys, chart.ceiling)}
    assert (name in drawn) is bool(entry.chart)


# --- The battery ---------------------------------------------------------------------------------


def views(b=5, d=3, seed=0):
    z = random(b, d, seed=seed)
    return z, z + 0.7 * random(b, d, seed=100 + seed)


def made(entry, **options):
    """The objective in float64, parameters included."""
    torch.set_default_dtype(torch.float64)
    try:
        return getattr(flatnce, entry.class_name)(0.4, **options)
    finally:
        torch.set_default_dtype(torch.float32)


@every_entry
@pytest.mark.parametrize("kernel", ["auto", "dense", "chunked"])
def test_value_and_gradient_are_the_definitions(entry, kernel):
    definition = reference.DEFINITIONS[entry.class_name]
    leaves, exact = ([z.requires_grad_() for z in views(4)] for _ in range(2))
    loss = made(entry, kernel=kernel)(*leaves)
    torch.testing.assert_close(loss, definition.value(*exact, 0.4), rtol=1e-12, atol=0)
    loss.backward()
    definition.gradient_of(*exact, 0.4).backward()
    for one, other in zip(leaves, exact, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


@every_entry
def test_a_module_is_restored_read_and_called_with_half_precision_and_ids(entry):
    torch.manual_seed(0)
    first, second, monitor = made(entry), made(entry), Monitor()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(*views()), second(*views()))
    monitor.update(first.last)
    numbers = monitor.compute(step=2)
    assert all(math.isfinite(numbers[name]) for name in FUNCTIONS)
    assert monitor.verdict() == verdict_on([numbers], entry.class_name)
    doubled = [torch.cat([z, z[:1]]) for z in views(4)]
    counts = []
    for ids in (torch.tensor([0, 1, 2, 3, 0]), None):
        first(*doubled, ids=ids)
        counts.append(first.last.contrast.count.sum())
    assert counts[0] < counts[1]  # copies are not negatives
    z1, z2 = (z.bfloat16().requires_grad_() for z in views(8))
    loss = getattr(flatnce, entry.class_name)(0.4)(z1, z2)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(z1.grad).all() and loss.dtype == torch.float32


# --- DHEL and SigLIP -----------------------------------------------------------------------------


@every_entry
def test_the_default_temperature_is_a_tenth(entry):
    loss_fn = getattr(flatnce, entry.class_name)()
    assert float(torch.as_tensor(loss_fn.temperature).detach()) == pytest.approx(0.1)
    assert getattr(loss_fn, "value", "infonce") == "infonce"
    assert loss_fn.power == (2.0 if entry.class_name == "HolderFlatNCE" else 1.0)


def test_the_power_is_printed_before_the_options():
    assert flatnce.HolderFlatNCE(gamma=3.0).extra_repr() == "gamma=3.0"
    shown = flatnce.HolderFlatNCE(layout="two_tower").extra_repr()
    assert shown == "gamma=2.0, layout='two_tower'"


def test_siglip_refuses_a_gradient_of_the_temperature():
    with pytest.raises(
        ValueError, match=r"^temperature_gradient .*SigLIP, whose scale follows its own gradient"
    ):
        flatnce.SigLIP(temperature_gradient="own")
    with pytest.raises(ValueError, match=r"temperature=0\.0 must be a positive"):
        flatnce.SigLIP(0.0)


@pytest.mark.parametrize("layout", ["two_view", "two_tower"])
def test_dhel_refuses_negatives_of_the_other_view(layout):
    with pytest.raises(ValueError, match=rf"layout='{layout}' cannot be used with DHEL.* use DCL"):
        flatnce.DHEL(layout=layout)


@pytest.mark.parametrize(
    "temperature",
    [flatnce.EssController(0.3), flatnce.LearnedTemperature(), torch.tensor(0.1)],
    ids=["EssController", "LearnedTemperature", "Tensor"],
)
def test_siglip_refuses_every_other_rule_of_a_temperature(temperature):
    named = type(temperature).__name__
    with pytest.raises(
        ValueError, match=f"temperature has type {named}; SigLIP learns its own scale"
    ):
        flatnce.SigLIP(temperature)
    with pytest.raises(ValueError, match="SigLIP learns its own scale"):
        flatnce.SigLIP().temperature = temperature
    with pytest.raises(ValueError, match="must be a positive finite number"):
        flatnce.SigLIP(math.nan)


@pytest.mark.parametrize(
    "change", [{"ess": 0.3}, {"learn_temperature": True}, {"temperature_end": 0.5}], ids=str
)
def test_a_config_refuses_them_too(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}=.* siglip learns a scale .* leave this out"):
        LossConfig(objective="siglip", **change)


def test_siglip_starts_at_the_papers_scale_and_bias_and_learns_both():
    loss_fn = flatnce.SigLIP()
    assert {name for name, _ in loss_fn.named_parameters()} == {
        "bias",
        "temperature_source.source.log_beta",
    }
    assert 1 / float(loss_fn.temperature.detach()) == pytest.approx(10.0)
    assert loss_fn.bias.item() == -10.0
    z = views()
    loss_fn(*z).backward()
    assert all(parameter.grad.abs() > 0 for parameter in loss_fn.parameters())


@pytest.mark.parametrize(
    ("start", "bounds"), [(0.1, (0.01, 1.0)), (0.001, (0.001, 1.0)), (3.0, (0.01, 3.0))]
)
def test_siglips_scale_is_held_between_1_and_100_or_where_it_starts(start, bounds):
    learned = flatnce.SigLIP(start).temperature_source.source
    assert (learned.lowest, learned.highest) == bounds


def test_siglips_own_gradients_are_the_definitions():
    loss_fn = made(OBJECTIVES["siglip"], bias=-2.0)
    loss_fn(*views()).backward()
    log_beta, bias = torch.tensor([-math.log(0.4), -2.0], dtype=torch.float64).requires_grad_()
    exact = reference.siglip(*views(), (-log_beta).exp(), bias)
    expected = torch.autograd.grad(exact, (log_beta, bias))
    learned = loss_fn.temperature_source.source.log_beta.grad, loss_fn.bias.grad
    torch.testing.assert_close(learned, expected, rtol=1e-7, atol=0)


def test_siglip_of_two_views_counts_all_pairs_of_the_rows():
    loss = made(OBJECTIVES["siglip"], bias=-2.0, layout="two_view")(*views(4))
    softplus = torch.nn.functional.softplus
    expected = reference.mean(
        [
            softplus(2.0 - row.positive) + softplus(row.negatives - 2.0).sum()
            for row in reference.two_view_rows(*views(4), 1 / 0.4)
        ]
    )
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-12, atol=0)
