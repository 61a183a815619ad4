"""Draws results.json as throughput.png and throughput.svg, and puts its tables into README.md.

python benchmarks/throughput/figure.py
"""

import json
from pathlib import Path

import accuracy
import matplotlib
import run

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

HERE = Path(__file__).parent
OURS, GOAL = "#009E73", "#444444"
PEERS = {"PIL": "#D55E00", "flatnce, plain": "#0072B2"}


def draw(results):
    parts = {name: part.get("rows") or [] for name, part in results["parts"].items()}
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.5, 1))
    draw_batches(panels[0], parts)
    draw_together(panels[1], parts)
    for panel in panels:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    device = results["environment"]["device"]
    figure.suptitle(
        f"CIFAR-10 pretraining, ResNet-18, images per second (two views each), {device}",
        fontsize=12,
    )
    figure.tight_layout()
    figure.savefig(HERE / "throughput.png", dpi=110)
    with Image.open(HERE / "throughput.png") as picture:
        small = picture.convert("RGB").quantize(192)  # a third of the bytes, no visible difference
    small.save(HERE / "throughput.png", optimize=True)
    figure.savefig(HERE / "throughput.svg", metadata={"Date": None})
    plt.close(figure)


def draw_batches(panel, parts):
    """Our path by batch size, its goals, and the peers where they were measured."""
    rows = [
        row
        for row in parts.get("train", [])
        if row["backbone"] == "resnet18" and "images_per_second" in row
    ]
    rows.sort(key=lambda row: row["batch"])
    batches = [row["batch"] for row in rows]
    rates = [row["images_per_second"] for row in rows]
    low, high = ([row["range"][end] for row in rows] for end in (0, 1))
    panel.plot(batches, rates, color=OURS, marker="o", linewidth=2.6, label="flatnce")
    panel.fill_between(batches, low, high, color=OURS, alpha=0.2, linewidth=0)
    goals = [(row["batch"], row["goal"]) for row in rows if row.get("goal")]
    if goals:
        panel.plot(*zip(*goals, strict=True), "_", color=GOAL, markersize=18, label="goal")
    for start, color in PEERS.items():
        found = [r for r in parts.get("peers", []) if r["name"].startswith(start)]
        found = [r for r in found if "range" in r and r["backbone"] == "resnet18"]
        found = sorted((r["batch"], r["images_per_second"]) for r in found)
        if found:
            name = next(r["name"] for r in parts["peers"] if r["name"].startswith(start))
            panel.plot(*zip(*found, strict=True), color=color, marker="s", label=name)
    panel.set_xscale("log", base=2)
    panel.set_xticks(batches, [str(batch) for batch in batches])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel("batch size")
    panel.set_ylabel("images per second")
    panel.set_title("one run", fontsize=10)
    panel.legend(frameon=False, fontsize=8)


def draw_together(panel, parts):
    """Batch 32: one run, the total of several, and the peers."""
    bars = [
        (row["name"], row["images_per_second"], "#BBBBBB")
        for row in parts.get("peers", [])
        if (row["backbone"], row["batch"]) == ("resnet18", run.SWEEP_BATCH)
        and "images_per_second" in row
    ]
    bars += [
        ("one run", row["images_per_second"], OURS)
        for row in parts.get("train", [])
        if (row["backbone"], row["batch"]) == ("resnet18", run.SWEEP_BATCH)
        and "images_per_second" in row
    ]
    swept = parts.get("sweep") or {}
    beside = (swept.get("runs"), run.SWEEP_BATCH)
    bars += [
        (f"{row['runs']} runs, streams", row["images_per_second"], OURS)
        for row in parts.get("runs", [])
        if (row["runs"], row["batch"]) == beside and "images_per_second" in row
    ]
    if "images_per_second" in swept.get("sweep", {}):
        rate = swept["sweep"]["images_per_second"]
        bars.append((f"{swept['runs']} runs, sweep", rate, OURS))
    for place, (_, rate, color) in enumerate(bars):
        panel.barh(place, rate, color=color)
        panel.text(rate, place, f" {rate:,.0f}", va="center", fontsize=8)
    panel.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    panel.set_xlim(right=1.2 * max([rate for _, rate, _ in bars], default=1))
    panel.set_xlabel("images per second")
    panel.set_title(f"batch {run.SWEEP_BATCH}", fontsize=10)


def fill(readme, mark, text):
    """Put a text between the marks of a page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = readme.read_text().partition(begin)
    _, _, after = rest.partition(end)
    readme.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main():
    matplotlib.rcParams["svg.hashsalt"] = "flatnce"  # the same bytes every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    results = json.loads((HERE / "results.json").read_text())
    draw(results)
    fill(HERE / "README.md", "table", run.table(results))
    paths = accuracy.found_in(HERE)
    if "graph" in paths and len(paths) > 1:
        fill(HERE / "README.md", "accuracy", accuracy.compared(paths))
    print(f"wrote throughput, .png and .svg, and the tables of README.md, in {HERE}")


if __name__ == "__main__":
    main()
