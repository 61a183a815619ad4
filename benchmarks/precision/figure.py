"""Draws results.json and results-cuda.json: gradients and embeddings, as .png and .svg.

python benchmarks/precision/figure.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

HERE = Path(__file__).parent
DTYPES = ("float32", "bfloat16", "float16")
NEGATIVES = 31
EXACT = 2e-9  # where an error of exactly 0 is drawn on the logarithmic axis

# Okabe and Ito's palette; drawn in this order, wide below narrow, since some lines coincide.
STYLES = {
    "flatnce": ("#009E73", "-", 4.6, "FlatNCE"),
    "softplus": ("#0072B2", "-", 2.8, "InfoNCE as softplus(gap)"),
    "cross_entropy_float32": ("#E69F00", "-", 2.0, "cross_entropy(logits.float())"),
    "cross_entropy": ("#D55E00", "-", 1.5, "cross_entropy, CPU"),
    "gpu": ("#000000", (0, (3, 3)), 1.1, "cross_entropy, GPU"),
}
ROWS = {
    "positive_error": "error of the\npositive's gradient",
    "negative_error": "error of the\nnegatives' gradient",
    "size": "size of the\npositive's gradient",
}


def curves(results, on_gpu, part, dtype):
    """The records to draw for a dtype, by style."""

    def by_loss(source):
        chosen = source[part][dtype]
        return {r["loss"]: r for r in chosen if r.get("negatives", NEGATIVES) == NEGATIVES}

    found = by_loss(results)
    if dtype != "float32":  # there the two devices agree
        found["gpu"] = by_loss(on_gpu)["cross_entropy"]
    return {name: found[name] for name in STYLES if name in found}


def draw_gradients(results, on_gpu):
    figure, panels = plt.subplots(3, 3, figsize=(10.5, 7.6), sharex=True, sharey="row")
    margins = results["margins"]
    for column, dtype in enumerate(DTYPES):
        panels[0, column].set_title(f"{dtype} logits", fontsize=11)
        for row, key in enumerate(ROWS):
            panel = panels[row, column]
            for name, record in curves(results, on_gpu, "logits", dtype).items():
                draw_curve(panel, key, name, margins, record)
            dress(panel)
            panel.set_ylim((1e-20, 30) if key == "size" else (8e-10, 8))
    for row, label in enumerate(ROWS.values()):
        panels[row, 0].set_ylabel(label)
    for panel in panels[:2].flat:
        ticks = {EXACT: "0", 1e-6: "1e-6", 1e-3: "0.1 %", 1e-2: "1 %", 1: "100 %"}
        panel.set_yticks(list(ticks), ticks.values())
    for panel in panels[2]:
        panel.set_yticks([1, 1e-5, 1e-10, 1e-15], ["1", "1e-5", "1e-10", "1e-15"])
        panel.set_xlabel("margin: positive − hardest negative")
    finish(
        figure,
        "gradients",
        "Once the positive wins, cross_entropy rounds its gradient to 0",
        "The softplus form keeps InfoNCE's gradient accurate but tiny (float16 cannot hold it "
        "past margin 19); FlatNCE's stays of size 1.\n"
        "31 negatives; median of 2,000 rows, band 5 to 95 %; "
        "× marks where the gradient becomes exactly 0",
    )


def draw_curve(panel, key, name, margins, record):
    color, line, wide, _ = STYLES[name]
    values = record[key]
    if key == "positive_error":
        low, values, high = zip(*values, strict=True)
        if name != "gpu":
            bounds = [[max(v, EXACT) for v in bound] for bound in (low, high)]
            panel.fill_between(margins, *bounds, color=color, alpha=0.15, linewidth=0)
    if key == "size":
        values = [value or None for value in values]
    else:
        values = [max(value, EXACT) for value in values]
    drawn = [(x, y) for x, y in zip(margins, values, strict=True) if y is not None]
    panel.plot(*zip(*drawn, strict=True), color=color, linestyle=line, linewidth=wide)
    zero = record["zero_from"][0]
    if zero is not None and key != "negative_error":
        place = 1.0 if key == "positive_error" else 1e-19
        panel.plot(zero, place, "x", color=color, markersize=8, markeredgewidth=2.2, zorder=5)
        if key == "size":
            panel.plot([drawn[-1][0], zero], [drawn[-1][1], place], color=color, linewidth=0.8)


def draw_embeddings(results, on_gpu):
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.5), sharex=True, sharey=True)
    for panel, dtype in zip(panels, DTYPES, strict=True):
        for name, record in curves(results, on_gpu, "embeddings", dtype).items():
            color, line, wide, _ = STYLES[name]
            low, middle, high = zip(*record["error"], strict=True)
            panel.plot(results["scores"], middle, color=color, linestyle=line, linewidth=wide)
            panel.fill_between(results["scores"], low, high, color=color, alpha=0.18, linewidth=0)
        panel.set_title(f"{dtype} embeddings", fontsize=11)
        panel.set_xlabel("margin: positive − mean negative")
        dress(panel)
    ticks = {1e-6: "1e-6", 1e-4: "0.01 %", 1e-2: "1 %", 1: "100 %"}
    panels[0].set_yticks(list(ticks), ticks.values())
    panels[0].set_ylim(5e-8, 3)
    panels[0].set_ylabel("error of the gradient\nof the embeddings")
    finish(
        figure,
        "embeddings",
        "End to end: gradient of the embeddings, two views at temperature 0.05",
        "126 negatives; median of 5 seeds, band all of them. At 20 the views coincide, so the "
        "positive pulls nowhere and its rounding shows no more.",
    )


def dress(panel):
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def finish(figure, name, headline, caption):
    """Put the caption above and the legend below, and write both files."""
    inch = 1 / figure.get_figheight()
    figure.text(0.5, 1 - 0.25 * inch, headline, ha="center", fontsize=13, fontweight="bold")
    figure.text(0.5, 1 - 0.36 * inch, caption, ha="center", va="top", fontsize=9, color="#444444")
    handles = [
        plt.Line2D([], [], color=color, linestyle=line, linewidth=wide, label=label)
        for color, line, wide, label in STYLES.values()
    ]
    figure.legend(handles=handles, loc="lower center", ncol=5, frameon=False, fontsize=9)
    lines = 1 + caption.count("\n")
    figure.tight_layout(rect=(0, 0.35 * inch, 1, 1 - (0.4 + 0.16 * lines) * inch))
    figure.savefig(HERE / f"{name}.png", dpi=110)
    with Image.open(HERE / f"{name}.png") as picture:
        small = picture.convert("RGB").quantize(192)  # a third of the bytes, no visible difference
    small.save(HERE / f"{name}.png", optimize=True)
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main():
    matplotlib.rcParams["svg.hashsalt"] = "flatnce"  # the same bytes every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    results = json.loads((HERE / "results.json").read_text())
    on_gpu = json.loads((HERE / "results-cuda.json").read_text())
    draw_gradients(results, on_gpu)
    draw_embeddings(results, on_gpu)
    print(f"wrote gradients and embeddings, .png and .svg, in {HERE}")


if __name__ == "__main__":
    main()
