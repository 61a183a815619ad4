"""The demo in small, and its page. Whole runs of it are in benchmarks/demo."""

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import softplus

from flatnce.cli import main
from flatnce.paper import demo
from flatnce.paper.demo import (
    MEASURES,
    Case,
    DemoConfig,
    demo_page,
    embed,
    findings_of,
    losses_of,
    run_demo,
    start_critics,
    train_case,
)
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.pretrain.runs.log import RunLog, read_run

TINY = {"steps": 6, "every": 3, "seeds": 2, "candidates": (4,), "width": 8, "pool": 64}
TINY["temperatures"] = (0.2, 0.05)


@pytest.fixture
def tiny(tmp_path) -> DemoConfig:
    return DemoConfig(**TINY, out=tmp_path / "demo")


def test_the_gaussians_hold_the_information_they_should():
    # E log p(y|x)/p(y) by simulation: an average of the pointwise information.
    rho = correlation_of(10.0, 20)
    x, y = draw_pairs(torch.Generator().manual_seed(0), 20_000, 20, rho)
    conditional = torch.distributions.Normal(rho * x, math.sqrt(1 - rho**2))
    pointwise = (conditional.log_prob(y) - torch.distributions.Normal(0, 1).log_prob(y)).sum(1)
    error = float(pointwise.std()) / math.sqrt(len(pointwise))
    assert float(pointwise.mean()) == pytest.approx(10.0, abs=4 * error)
    assert error < 0.05


def test_both_objectives_start_alike_and_by_their_own_seed_only():
    alone, among = start_critics([7], 8), start_critics([0, 7], 8)
    for single, several in zip(alone, among, strict=True):
        torch.testing.assert_close(several[:2], several[2:], rtol=0, atol=0)
        torch.testing.assert_close(single[0], several[1], rtol=0, atol=0)


def test_both_objectives_see_the_same_pairs(tiny, monkeypatch):
    seen = []

    def losses(logits):
        seen.append(logits.detach().clone())
        return logits.sum() * torch.zeros(len(logits))  # nobody moves, so scores tell the data

    monkeypatch.setattr(demo, "losses_of", losses)
    list(train_case(Case(4, 0.05, 1e-3), tiny))
    assert len(seen) == tiny.steps
    assert all(torch.equal(logits[:2], logits[2:]) for logits in seen)
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("run", range(4))
def test_a_run_among_others_gets_the_gradient_it_would_get_alone(run):
    critics = start_critics([0, 7], width=8)
    generator = torch.Generator().manual_seed(1)
    pairs = [draw_pairs(generator, 4, 20, 0.8) for _ in range(2)]
    x, y = (torch.stack(part * 2) for part in zip(*pairs, strict=True))
    left, right = embed(critics, x, y)
    together = torch.autograd.grad(losses_of(20 * left @ right.mT).sum(), critics)
    own = [tensor[run].detach().clone().requires_grad_() for tensor in critics]

    def tower(layers, inputs):
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            inputs = torch.relu(inputs @ weight + bias)
        out = inputs @ layers[-2] + layers[-1]
        return out / out.norm(dim=1, keepdim=True)

    half = len(own) // 2
    scores = 20 * tower(own[:half], x[run]) @ tower(own[half:], y[run]).T
    others = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), -torch.inf)
    gap = others.logsumexp(dim=1) - scores.diagonal()
    loss = softplus(gap).mean() if run < 2 else gap.mean()  # FlatNCE's gradient is the gap's
    for alone, all_runs in zip(torch.autograd.grad(loss, own), together, strict=True):
        torch.testing.assert_close(all_runs[run], alone, rtol=1e-4, atol=1e-6)


def test_the_demo_is_the_same_twice_and_writes_what_it_returns(tiny):
    told, before = [], torch.get_num_threads()
    first, second = run_demo(tiny), run_demo(tiny, lambda line, last: told.append((line, last)))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    written = read_run(tiny.out)
    assert written.results["cases"] == second["cases"]
    # 2 cases, 2 objectives, 2 seeds, steps 0, 3 and 6.
    assert len(written.metrics) == 2 * 2 * 2 * 3
    assert all(set(MEASURES) < set(record) for record in written.metrics)
    assert [last for _, last in told] == [False, False, True] * 2
    assert told[4][0].startswith("[2/2] K 4, τ 0.05: step 3 of 6, InfoNCE")
    assert torch.get_num_threads() == before


def test_the_ceiling_is_said_to_be_reached_only_where_it_is(tiny):
    results = run_demo(tiny)
    assert "not near the ceiling" in results["findings"][2]["text"]
    for case in results["cases"]:
        case["objectives"]["infonce"]["k_mi"]["mean"] = 0.95 * case["log_k"]
        case["difference"] = {"mean": 0.3, "sd": 0.1, "values": [0.2, 0.4]}
    assert "FlatNCE drops that factor and keeps learning" in findings_of(results)[2]["text"]
    for case in results["cases"]:
        case["difference"] = {"mean": -0.3, "sd": 0.1, "values": [-0.2, -0.4]}
    text = findings_of(results)[2]["text"]
    assert "keeps learning" not in text and "not near the ceiling" not in text
    assert "InfoNCE is ahead by 0.30 ± 0.10" in text


def test_the_words_compare_best_with_best_and_name_where_infonce_is_ahead(tiny):
    results = run_demo(tiny)
    infonce, flatnce = ([[6.0, 6.2], [4.0, 4.4]], [[5.9, 5.9], [6.3, 6.5]])  # by temperature
    for case, first, second in zip(results["cases"], infonce, flatnce, strict=True):
        for name, values in (("infonce", first), ("flatnce", second)):
            case["objectives"][name]["pool_mi"] = {"mean": sum(values) / 2, "values": values}
        gaps = [b - a for a, b in zip(first, second, strict=True)]
        case["difference"] = {"mean": sum(gaps) / 2, "sd": 0.1, "values": gaps}
    by_topic = {finding["topic"]: finding["text"] for finding in findings_of(results)}
    assert "K = 4: InfoNCE 4.20 to 6.10, FlatNCE 5.90 to 6.40." in by_topic["By temperature"]
    best = "InfoNCE 6.10 (τ = 0.2), FlatNCE 6.40 (τ = 0.05): FlatNCE is ahead by 0.30 ± 0.00"
    assert best in by_topic["Best against best"]
    assert by_topic["The ceiling"].startswith("At K = 4, τ = 0.05, ")
    ahead = by_topic["Where InfoNCE is ahead in every seed"]
    assert ahead.startswith("K = 4, τ = 0.2, by 0.20. ")
    results["cases"][0]["difference"] |= {"mean": -0.001, "values": [-0.001, -0.001]}
    (text,) = (one["text"] for one in findings_of(results) if one["topic"].startswith("Where"))
    assert text.startswith("K = 4, τ = 0.2, by 0.001. ")
    results["cases"][0]["difference"]["values"] = [-0.3, 0.1]
    (text,) = (one["text"] for one in findings_of(results) if one["topic"].startswith("Where"))
    assert text == "InfoNCE is ahead in every seed in none of these settings."


def test_the_table_of_the_demo_has_whole_words_in_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    typed = "demo --steps 1 --seeds 2 --candidates 4 --temperatures 0.05 --width 8 --pool 32"
    assert main([*typed.split(), "--out", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr().out.partition("Done in")[0]
    assert max(map(len, said.splitlines())) <= 80 and "…" not in said
    assert "K = 4, τ = 0.05  FlatNCE" in said and " Retrieval\n" in said
    assert re.search(r"^\[1/1\] K 4, τ 0.05: step 1 of 1, .* nats$", said, re.M)
    assert "with positive: share of all K candidates" in " ".join(said.split())


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"steps": 0}, "steps=0"),
        ({"seeds": 1}, "seeds=1"),
        ({"candidates": (4, 1)}, "candidates=1"),
        ({"candidates": ()}, "candidates=.*at least one"),
        ({"candidates": (4, 4)}, "each once"),
        ({"pool": 4}, "pool=4"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"temperatures": (0.1, math.nan)}, "temperatures=nan"),
        ({"temperatures": (0.1, 0.1)}, "temperatures=.*each once"),
    ],
)
def test_bad_configurations_are_named(bad, words, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=words):
        DemoConfig(**{"out": tmp_path, **bad})
    with pytest.raises(ValueError, match="is a file"):
        DemoConfig(out=tmp_path / "file")


# The page.

LIGHT, DARK = ((213, 94, 0), (0, 114, 178)), ((230, 159, 0), (86, 180, 233))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a tiny demo."""
    out = tmp_path_factory.mktemp("runs") / "demo"
    # Long enough for the two curves to part, or one would hide the other.
    sizes = {"candidates": (4, 8), "temperatures": (0.2, 0.05), "width": 16, "pool": 64}
    config = DemoConfig(steps=80, every=20, seeds=2, learning_rate=0.01, out=out, **sizes)
    run_demo(config)
    return demo_page(out)


def test_every_chart_has_a_description_and_a_table_and_nothing_is_outside_the_page(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    charts = text.count("<figure>")
    assert charts == text.count("<svg ") == text.count("<details>") == text.count("<desc")
    assert text.count("<table") == charts + 1  # and the summary
    assert all(link.startswith("#") for link in re.findall(r'(?:src|href)="([^"]+)"', text))
    assert not re.search(r"<script [^>]|https?://|@import|url\((?!#)", text)


@pytest.mark.parametrize("dark, colours", [(False, LIGHT), (True, DARK)], ids=["light", "dark"])
def test_the_page_is_drawn_in_a_browser(chromium, page, dark, colours):
    image = pytest.importorskip("PIL.Image", reason="no pillow to look at the picture with")
    address = page.resolve().as_uri()
    for width in (1100, 500):
        chromium.open(address, dark=dark, width=width)
        picture = image.open(io.BytesIO(chromium.picture())).convert("RGB")
        seen = {colour: count for count, colour in picture.getcolors(1 << 24)}
        assert all(seen.get(colour, 0) > 200 for colour in colours), "no curves are drawn"
        assert (sum(picture.getpixel((2, 2))) > 600) == (not dark)
    assert chromium.complaints == [] and set(chromium.requests) == {address}


def test_a_run_of_another_kind_is_refused(tmp_path):
    RunLog(tmp_path / "a", kind="train", config={}).finish({})
    with pytest.raises(ValueError, match="holds a train run"):
        demo_page(tmp_path / "a")


# What was recorded.

ROOT = Path(__file__).parents[2]


def test_the_printed_numbers_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks/demo/results.json").read_text(encoding="utf-8"))
    page = (ROOT / "benchmarks/demo/README.md").read_text(encoding="utf-8")
    best = {}
    for case in record["cases"]:
        cells = [f"| {case['candidates']} | {case['temperature']:g} "]
        for name in ("infonce", "flatnce"):
            found = case["objectives"][name]["pool_mi"]
            best[name, case["candidates"]] = max(
                best.get((name, case["candidates"]), 0.0), found["mean"]
            )
            cells.append(f"| {found['mean']:.2f} ± {found['sd']:.2f} ")
        difference = case["difference"]
        cells.append(f"| {difference['mean']:+.2f} ± {difference['sd']:.2f} |".replace("-", "−"))
        row = next(line for line in page.splitlines() if line.startswith(cells[0]))
        assert all(cell in row for cell in cells)
    assert {key: f"{value:.2f}" for key, value in best.items()} == {
        ("infonce", 8): "6.30",
        ("flatnce", 8): "6.36",
        ("infonce", 32): "6.79",
        ("flatnce", 32): "6.81",
    }
    wide = json.loads((ROOT / "benchmarks/demo/results_width_256.json").read_text("utf-8"))
    for numbers, loss in ((record, {8: ("1.29", "0.10"), 32: ("0.60", "0.06")}),
                          (wide, {8: ("1.37", "0.09"), 32: ("0.50", "0.04")})):  # fmt: skip
        assert {"environment", "config"} <= set(numbers)
        for size, said in loss.items():
            lost = []
            for name in ("infonce", "flatnce"):
                means = {
                    case["temperature"]: case["objectives"][name]["pool_mi"]["mean"]
                    for case in numbers["cases"]
                    if case["candidates"] == size
                }
                low = [mean for temperature, mean in means.items() if temperature <= 0.2]
                lost.append(f"{max(low) - min(low):.2f}")
            assert tuple(lost) == said
            assert lost[0] in page
    first_page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "6.36 nats (FlatNCE) and 6.30 (InfoNCE) at K = 8, 6.81 and 6.79 at K = 32" in first_page
