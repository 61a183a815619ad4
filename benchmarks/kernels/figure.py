"""Draws results.json as kernels.png and kernels.svg, and puts its table into README.md.

python benchmarks/kernels/figure.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import run
from PIL import Image

HERE = Path(__file__).parent
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
WIDTH = 256

# Okabe and Ito's palette.
STYLES = {
    "fused: unit rows, ESS": ("#009E73", "o", 2.8, "flatnce, fused (with ESS)"),
    "chunked: unit rows, ESS": ("#0072B2", "s", 1.4, "flatnce, chunked (with ESS)"),
    "torch.compile": ("#D55E00", "^", 1.4, "torch.compile"),
    "plain torch": ("#E69F00", "v", 1.4, "plain torch"),
    "Inf-CL (Triton)": ("#CC79A7", "D", 1.4, "Inf-CL"),
    "Cut Cross-Entropy (Triton)": ("#56B4E9", "P", 1.4, "Cut Cross-Entropy"),
    "Liger fused linear CE": ("#999999", "X", 1.4, "Liger"),
    "FlexAttention lse": ("#000000", "*", 1.4, "FlexAttention"),
}


def draw_lines(panel, cases, key, label):
    """One line per method over the number of rows; a method that failed has a gap."""
    for name, (color, marker, wide, _) in STYLES.items():
        points = [
            (case["n"], record[key])
            for case in cases
            for record in case["methods"]
            if record["name"] == name and key in record
        ]
        if points:
            panel.plot(*zip(*points, strict=True), color=color, marker=marker, linewidth=wide)
    if key == "ms":
        floor = [(case["n"], case["floor_ms"]) for case in cases]
        panel.plot(*zip(*floor, strict=True), color="#444444", linestyle=":", linewidth=1.2)
        panel.annotate("floor", floor[0], fontsize=8, color="#444444", va="top")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks([c["n"] for c in cases], [f"{c['n']:,}" for c in cases])
    panel.minorticks_off()
    panel.set_xlabel("rows N")
    panel.set_ylabel(label)


def rounded(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def draw_bars(panel, case):
    """Time of every method of one row."""
    timed = [record for record in case["methods"] if "ms" in record]
    timed.sort(key=lambda record: -record["ms"])
    for place, record in enumerate(timed):
        low, high = record["quartiles_ms"]
        whisker = [[record["ms"] - low], [high - record["ms"]]]
        color = "#009E73" if record["kind"] == "ours" else "#BBBBBB"
        panel.barh(place, record["ms"], color=color, xerr=whisker, error_kw={"linewidth": 1})
        panel.text(high, place, f" {rounded(record['ms'])} ms", va="center", fontsize=8)
    panel.axvline(case["floor_ms"], color="#444444", linestyle=":", linewidth=1.2)
    panel.set_yticks(range(len(timed)), [record["name"] for record in timed], fontsize=8)
    panel.set_xscale("log")
    panel.set_xlim(right=panel.get_xlim()[1] * 3)
    panel.minorticks_off()
    panel.set_xlabel("milliseconds")


def dress(panel):
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def draw(results):
    towers = [c for c in results["cases"] if c["layout"] == "one" and c["d"] == WIDTH]
    towers.sort(key=lambda case: case["n"])
    simclr = [c for c in results["cases"] if c["layout"] == "simclr"]
    figure, panels = plt.subplots(1, 3, figsize=(12.5, 4.2), width_ratios=(1, 1, 1.1))
    draw_lines(panels[0], towers, "ms", "milliseconds")
    draw_lines(panels[1], towers, "memory_mib", "peak memory, MiB")
    panels[0].set_title(f"two towers, one direction, d = {WIDTH}: time", fontsize=10)
    panels[1].set_title("the same: memory", fontsize=10)
    for case in simclr[:1]:
        draw_bars(panels[2], case)
        panels[2].set_title(case["name"], fontsize=10)
    for panel in panels:
        dress(panel)
    drawn = {m["name"] for case in towers for m in case["methods"] if "ms" in m}
    handles = [
        plt.Line2D([], [], color=color, marker=marker, linewidth=wide, label=label)
        for name, (color, marker, wide, label) in STYLES.items()
        if name in drawn
    ]
    figure.legend(handles=handles, loc="lower center", ncol=8, frameon=False, fontsize=8)
    device = results["environment"]["device"]
    figure.suptitle(f"Forward and backward of a contrastive loss, bfloat16, {device}", fontsize=12)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(HERE / "kernels.png", dpi=110)
    with Image.open(HERE / "kernels.png") as picture:
        small = picture.convert("RGB").quantize(192)  # a third of the bytes, no visible difference
    small.save(HERE / "kernels.png", optimize=True)
    figure.savefig(HERE / "kernels.svg", metadata={"Date": None})
    plt.close(figure)


def fill(readme, text):
    """Put a text between the marks of a page."""
    page = readme.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main():
    matplotlib.rcParams["svg.hashsalt"] = "flatnce"  # the same bytes every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    results = json.loads((HERE / "results.json").read_text())
    draw(results)
    fill(HERE / "README.md", run.table(results))
    print(f"wrote kernels, .png and .svg, and the table of README.md, in {HERE}")


if __name__ == "__main__":
    main()
