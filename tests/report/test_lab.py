"""The negatives lab of the docs in a real browser: its numbers are flatnce's, by keyboard too."""

import json

import pytest
import torch

from chromium import PROBLEMS
from flatnce import functional as F
from paths import ROOT

PAGE = ROOT / "docs" / "_static" / "negatives-lab.html"
START = {"candidates": 32, "temperature": 0.1, "gap": 0.6, "spread": 0.12}
SETTINGS = [
    START,
    {"candidates": 2, "temperature": 0.5, "gap": 0.0, "spread": 0.3},
    {"candidates": 3, "temperature": 0.07, "gap": 1.5, "spread": 0.0},
    {"candidates": 256, "temperature": 0.05, "gap": 0.35, "spread": 0.2},
    {"candidates": 4096, "temperature": 0.02, "gap": 1.2, "spread": 0.1},
    {"candidates": 65536, "temperature": 0.02, "gap": 0.0, "spread": 0.3},
]
SHOWN = """Object.fromEntries([...document.querySelectorAll("output[data-exact]")]
  .map((one) => [one.id, Number(one.dataset.exact)]))"""
WORDS = "document.getElementById('words').textContent"
TAB, RIGHT, LEFT = ("Tab", 9), ("ArrowRight", 39), ("ArrowLeft", 37)
HOME, END, SPACE = ("Home", 36), ("End", 35), (" ", 32, " ")


@pytest.fixture
def lab(chromium):
    """The page, opened anew."""
    chromium.open(PAGE.as_uri())
    return chromium


def measured(candidates: int, temperature: float, gap: float, spread: float) -> dict[str, float]:
    """What flatnce says of the page's model; gradients are autograd's, in the similarities."""
    rank = torch.arange(1, candidates, dtype=torch.float64)
    below = -gap + spread * torch.special.ndtri((rank - 0.5) / (candidates - 1))
    similarities = torch.cat([torch.zeros(1, dtype=torch.float64), below]).requires_grad_()
    contrast = F.contrast_from_logits(similarities[None] / temperature, torch.tensor([0]))
    numbers = {
        "ess": F.effective_sample_size(contrast),
        "essWithPositive": F.effective_sample_size(contrast, with_positive=True),
        "gain": F.gradient_gain(contrast),
        "loss": F.infonce(contrast),
        "ceiling": F.mutual_information_ceiling(contrast),
        "information": F.mutual_information(contrast),
    }
    for name, loss in (("infonce", F.infonce(contrast)), ("flatnce", F.flatnce(contrast))):
        (gradient,) = torch.autograd.grad(loss, similarities, retain_graph=True)
        numbers |= {f"{name}Positive": -gradient[0], f"{name}Hardest": gradient[1:].max()}
    return {name: float(number.detach()) for name, number in numbers.items()}


def sliders(lab) -> dict[str, float]:
    shown = "[...document.querySelectorAll('input')].map((one) => [one.id, Number(one.value)])"
    found = dict(lab.run(shown))
    return found | {"candidates": 2 ** int(found["candidates"])}


def focus(lab, name: str) -> None:
    """Go to an element with Tab alone."""
    lab.run("document.activeElement.blur()")
    for _ in range(40):
        lab.press(*TAB)
        if lab.run("document.activeElement.id || document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"K{one['candidates']}")
def test_the_pages_function_agrees_with_flatnce(lab, setting):
    asked = f"(({{ weights, ...rest }}) => rest)(negativesLab.measure({json.dumps(setting)}))"
    found = lab.run(asked)
    for name, number in measured(**setting).items():
        assert found[name] == pytest.approx(number, rel=1e-6, abs=1e-300), name


def test_the_keyboard_moves_every_slider_and_the_numbers_follow(lab):
    moves = {"gap": RIGHT, "candidates": RIGHT, "temperature": LEFT, "spread": RIGHT}
    for name, key in moves.items():
        before, settings, words = lab.run(SHOWN), sliders(lab), lab.run(WORDS)
        focus(lab, name)
        for _ in range(3):
            lab.press(*key)
        now = sliders(lab)
        assert now[name] != settings[name] and {**now, name: settings[name]} == settings
        found, wanted = lab.run(SHOWN), measured(**now)
        assert found != before and lab.run(WORDS) != words
        assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)
        said = lab.run("document.activeElement.getAttribute('aria-valuetext')")
        assert float(said.replace(",", "")) == now[name]


@pytest.mark.parametrize(
    "key, words", [(HOME, "The negatives hold their own"), (END, "less than a millionth")]
)
def test_the_words_change_with_the_state(lab, key, words):
    lab.run("location.hash = '#candidates=16&temperature=0.05'")
    lab.until(lambda: sliders(lab)["candidates"] == 16)
    focus(lab, "gap")
    lab.press(*key)
    assert words in lab.run(WORDS)
    focus(lab, "3 The positive wins")
    lab.press(*SPACE)
    share = f"{100 * measured(**sliders(lab))['gain']:.2g} %"
    assert f"The positive wins: InfoNCE's gradient is {share} of FlatNCE's." in lab.run(WORDS)


@pytest.mark.parametrize("hash_", ["#gap=nonsense&candidates=-4", "#gap=", "#other=1", "#%"])
def test_a_bad_address_opens_the_page_as_it_is(lab, hash_):
    lab.run(f"location.hash = {json.dumps(hash_)}")
    lab.run("new Promise((done) => setTimeout(done, 50))")
    assert sliders(lab) == START
    assert lab.complaints == []


def test_the_page_is_silent_offline_and_usable_in_both_themes_and_widths(lab):
    for dark, width in ((False, 1100), (True, 1100), (False, 420), (True, 360)):
        lab.open("about:blank")
        hardest = "#gap=1.5&candidates=65536&temperature=0.02"
        lab.open(PAGE.as_uri() + (hardest if dark else ""), dark=dark, width=width)
        lab.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert lab.run(PROBLEMS) == [], (dark, width)
        charts = "[...document.querySelectorAll('svg')].map((one) => one.childElementCount)"
        assert len(lab.run(charts)) == 3 and min(lab.run(charts)) > 8
    assert lab.complaints == []
    asked = {url.partition("#")[0] for url in lab.requests}
    assert asked <= {PAGE.as_uri(), "about:blank", "data:,"}


def test_a_screen_reader_hears_names_of_sliders_and_one_voice(lab):
    nodes = lab.ask("Accessibility.getFullAXTree")["nodes"]
    named = {
        role: [n["name"]["value"] for n in nodes if n.get("role", {}).get("value") == role]
        for role in ("slider", "image")
    }
    assert len(named["slider"]) == 4 and all(named["slider"])
    assert len(named["image"]) == 3
    # Twelve voices at each step of a slider would be noise: the words alone are spoken.
    live = "[...document.querySelectorAll('output:not([aria-live=off])')].map((one) => one.id)"
    assert lab.run(live) == ["words"]


def test_paper_is_white_and_shows_the_setting(lab):
    lab.open(PAGE.as_uri(), dark=True)
    lab.ask("Emulation.setEmulatedMedia", media="print")
    assert lab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    gone = "[...document.querySelectorAll('button, input, details')]"
    assert lab.run(f"{gone}.filter((one) => one.checkVisibility()).length") == 0
    assert "K = 32" in lab.run("document.getElementById('settings').textContent")


def test_the_page_is_one_small_file():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text) < 60_000 and "http://" not in text and "https://" not in text
