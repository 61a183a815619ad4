"""Draws results.json: time of forward and backward relative to plain NT-Xent, by batch.

python benchmarks/eager/figure.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
STYLES = {
    "FlatNCE": ("#009E73", "o"),
    "FlatNCE, EssController": ("#0072B2", "s"),
    "FlatNCE, Monitor": ("#56B4E9", "^"),
    "lightly NTXentLoss": ("#E69F00", "v"),
    "lightly DCLLoss": ("#D55E00", "D"),
}

RATIOS = (0.5, 1, 2, 5, 10)


def device_of(result):
    """The GPU, or the kind of CPU with its threads."""
    if "NVIDIA" in result["machine"]:
        return result["machine"]
    return f"CPU ({result['machine']}, {result['threads']} thread)"


def main():
    results = json.loads((HERE / "results.json").read_text())
    figure, axes = plt.subplots(1, len(results), figsize=(9, 3.6), squeeze=False, sharey=True)
    for axis, result in zip(axes[0], results.values(), strict=True):
        rows = [r for r in result["rows"] if r["group"] == "loss" and r["dtype"] == "float32"]
        for name, (color, marker) in STYLES.items():
            times = [r["milliseconds"] for r in rows]
            ratios = [t[name] / t["plain NT-Xent"] for t in times]
            axis.plot([r["batch"] for r in rows], ratios, color=color, marker=marker, label=name)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="batch", title=f"{device_of(result)}, float32")
        batches = [row["batch"] for row in rows]
        axis.set_xticks(batches, [f"{batch:,}" for batch in batches])
        axis.set_yticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        axis.minorticks_off()
    axes[0][0].set_ylabel("time / plain NT-Xent")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(HERE / "eager.png", dpi=150)


if __name__ == "__main__":
    main()
