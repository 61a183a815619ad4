"""Pages print what committed records hold: per record, words with its numbers, and their pages."""

import json
import math
import re
from collections import defaultdict
from functools import cache
from statistics import fmean, median_high, stdev

import pytest
from scipy.stats import t as student

from pages import CHANGES, README, RESULTS, WHICH, missing, words_of
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
REPRODUCE, SPEED = "docs/reproduce.md", "docs/speed.md"
GAIN, CEILING = "docs/explain/gain.md", "docs/explain/log-k-ceiling.md"


@cache
def record(path):
    return json.loads((BENCHMARKS / path).read_text(encoding="utf-8"))


def minus(text):
    return text.replace("-", "−")


def percent(share, digits=0):
    return f"{100 * share:.{digits}f} %"


def spread(values, digits=2):
    """Mean ± standard deviation; the rounding of sums must not decide about a half."""
    return f"{fmean(values):.{digits}f} ± {round(stdev(values), 6):.{digits}f}"


def shown(found):
    """A recorded mean with its standard deviation."""
    return minus(f"{found['mean']:.2f} ± {found['sd']:.2f}")


def apart(first, second):
    return [one - other for one, other in zip(first, second, strict=True)]


# Each function yields words, and the pages that have them.


def demo():
    cases = {}
    for case in record("demo/results.json")["cases"]:
        cases[case["candidates"], case["temperature"]] = case

    def found(objective, size, temperature):
        return cases[size, temperature]["objectives"][objective]["pool_mi"]

    best, lost = {}, {}
    for name in ("flatnce", "infonce"):
        for size in (8, 32):
            means = {t: found(name, size, t)["mean"] for k, t in cases if k == size}
            low = [mean for temperature, mean in means.items() if temperature <= 0.2]
            best[name, size] = f"{max(means.values()):.2f}"
            lost[name, size] = f"{max(low) - min(low):.1f}"
    (flat, flat_32), (info, info_32) = (
        (best[name, 8], best[name, 32]) for name in ("flatnce", "infonce")
    )
    most, worst = lost["flatnce", 8], lost["infonce", 8]
    assert most == lost["flatnce", 32]
    yield f"{flat} nats (FlatNCE) and {info} (InfoNCE) at K = 8, {flat_32} and", README
    yield f"and {info_32} at K = 32. From temperature", README
    yield f"| K = 8, best temperature of each | {flat} nats | {info} nats |", RESULTS
    yield f"| K = 32, best temperature of each | {flat_32} nats | {info_32} nats |", RESULTS
    yield f"0.2 to 0.02, FlatNCE loses at most {most} nats and InfoNCE up to {worst}.", README
    said = "largest − smallest at temperatures from 0.02 to 0.2"
    yield f"| K = 8, {said} | {most} nats | {worst} nats |", RESULTS
    yield f"| K = 32, {said} | {most} nats | {lost['infonce', 32]} nats |", RESULTS
    high = cases[8, 0.5]["difference"]
    yield f"InfoNCE is better by {-high['mean']:.2f} (K = 8)", README
    yield f"InfoNCE is better by {-high['mean']:.2f} ± {high['sd']:.2f}**", RESULTS
    yield "with K = 8 **InfoNCE is better** at temperature 0.5, and at 0.2 with four times", WHICH
    values = [f"{found(name, 8, 0.5)['mean']:.2f} nats" for name in ("flatnce", "infonce")]
    yield f"| K = 8, temperature 0.5 | {' | '.join(values)} |", RESULTS
    level = cases[8, 0.2]["difference"]
    assert abs(level["mean"]) < level["sd"]
    gain = cases[8, 0.2]["objectives"]["infonce"]["gain"]["mean"]
    yield f"temperature 0.2, K = 8 (gain {gain:.2f}), there was no clear difference", WHICH
    ours, theirs = found("flatnce", 8, 0.05), found("infonce", 8, 0.05)
    yield f"find {shown(theirs)} nats in a large pool with InfoNCE and {shown(ours)}", CEILING
    yield f"With K = 32 the difference is {cases[32, 0.05]['difference']['mean']:.2f}.", CEILING
    level = f"{found('infonce', 8, 0.2)['mean']:.2f}"
    yield f"InfoNCE finds {level}, nearly as much as FlatNCE at its best", CEILING
    yield f"at its best temperature ({flat})", CEILING


def weighting():
    rows = {}
    for row in record("demo/weighting.json")["rows"]:
        found, key = row["pool_mi"], (row["inverse_temperature"], row["learning_rate"])
        weighted = ("rows", "batches", "infonce")
        rows[key] = [apart(found[name], found["flatnce"]) for name in weighted]
    of_rows, of_batches, whole = (f"{-fmean(each):.2f}" for each in rows[20.0, 0.001])
    yield f"costs FlatNCE {of_rows} nats and weighting the batches costs {of_batches}, of", GAIN
    yield f"of the {whole} nats by which InfoNCE is worse", GAIN
    of_rows, of_batches, whole = (f"{fmean(each):.2f}" for each in rows[5.0, 0.004])
    yield f"*improve* FlatNCE by {of_rows} and {of_batches}, of the {whole} by which", GAIN
    yield f"and by {spread(rows[5.0, 0.004][2])} at 0.2 with four times the learning rate", RESULTS


def small_batch():
    tops, gains = {}, {}
    for folder in (BENCHMARKS / "small_batch" / "runs").iterdir():
        config, results = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "results")
        )
        loss, seed = config["config"]["loss"], config["config"]["run"]["seed"]
        key = loss["objective"], loss["temperature"], seed
        gains[key] = f"{results['last']['gain']:.2f}"
        for one in results["evaluations"]:
            tops[*key, one["protocol"]["name"]] = 100 * one["top1"]
    near = "knn, k = 200"

    def pair(objective, protocol):
        return " and ".join(f"{tops[objective, 0.1, seed, protocol]:.1f}" for seed in (0, 1))

    for protocol, said in ((near, "kNN (k = 200)"), ("linear", "linear")):
        cells = [f"{pair(name, protocol)} %" for name in ("flatnce", "infonce")]
        yield f"| {said}, temperature 0.1 | {' | '.join(cells)} |", RESULTS
        cells = [f"{tops[name, 0.2, 0, protocol]:.1f} %" for name in ("flatnce", "infonce")]
        yield f"| {said}, temperature 0.2 | {' | '.join(cells)} |", RESULTS
    gaps = [tops["flatnce", 0.1, s, near] - tops["infonce", 0.1, s, near] for s in (0, 1)]
    ahead = " and ".join(f"{gap:.1f}" for gap in gaps)
    assert 3 < min(gaps) < max(gaps) < 4
    yield "better by 3 to 4 points of kNN accuracy", GAIN
    little = f"{tops['flatnce', 0.2, 0, near] - tops['infonce', 0.2, 0, near]:.1f}"
    assert float(little) < min(gaps) / 2 and tops["infonce", 0.2, 0, near] > max(
        tops["infonce", 0.1, seed, near] for seed in (0, 1)
    )
    yield "most of the difference at temperature 0.1 is gone at 0.2, where InfoNCE is", WHICH
    ends = gains["infonce", 0.1, 0], gains["flatnce", 0.1, 0]
    said = f"at temperature 0.1 (gain {ends[0]} with InfoNCE, {ends[1]} with FlatNCE) FlatNCE"
    yield f"{said} was better by {ahead} points of kNN accuracy (two seeds)", WHICH
    gain = gains["flatnce", 0.2, 0]
    yield f"0.2 (gain {gain}) the same CIFAR-10 run was better by {little} points", WHICH
    cold = sorted(gain for (_, temperature, _), gain in gains.items() if temperature == 0.1)
    yield f"ended at {cold[0]} to {cold[-1]}, where FlatNCE", GAIN


def of_experiment(name):
    """The rows of an experiment that trains while it is analysed."""
    (file,) = (BENCHMARKS / "reproduce" / "records").glob(f"{name}-small-*.json")
    rows = record(file.relative_to(BENCHMARKS))["findings"]["rows"]
    keys = ("objective", "critic", "nats")
    return {tuple(row["variables"][key] for key in keys): row for row in rows}


def table_1():
    rows = of_experiment("table-1")
    names = {
        "DV, all pairs": ("DV", "dot"),
        "DV, one shuffled copy": ("DV, one shuffled copy", "dot"),
        "NWJ, all pairs": ("NWJ", "dot"),
        "FLO, learned u": ("FLO", "dot"),
        "InfoNCE, dot product": ("InfoNCE", "dot"),
        "FlatNCE, dot product": ("FlatNCE", "dot"),
        "FlatNCE, cosine": ("FlatNCE", "cosine"),
    }
    found = {name: rows[*key, 6.0]["measures"] for name, key in names.items()}
    for name, measures in found.items():
        columns = ("bias, true critic", "sd, true critic", "gradient's spread")
        cells = [minus(f"{measures[column]['mean']:.2f}") for column in columns]
        bound = rows[*names[name], 6.0]["variables"]["bound?"]
        cells = [name, bound, *cells, shown(measures["calibrated InfoNCE"])]
        yield f"| {' | '.join(cells)} |", REPRODUCE
    best, other = (
        shown(found[name]["calibrated InfoNCE"])
        for name in ("FlatNCE, cosine", "InfoNCE, dot product")
    )
    yield f"FlatNCE with a cosine critic | {best} nats | {other} nats |", RESULTS
    for nats in (2.0, 4.0):
        flat, *others = (
            rows[*key, nats]["measures"]["calibrated InfoNCE"]["mean"]
            for key in (("FlatNCE", "cosine"), ("InfoNCE", "dot"), ("TUBA, α = 0.1", "dot"))
        )
        assert min(others) > flat
    yield "at 2 and 4 nats InfoNCE and TUBA with α = 0.1 are better", RESULTS
    yield "At 2 and 4 nats, InfoNCE with a dot product is better. So was TUBA", REPRODUCE
    bias = percent(found["FlatNCE, cosine"]["bias, true critic"]["mean"] / 6)
    yield f"is {bias} above the truth", RESULTS, REPRODUCE
    far = 6 + found["FlatNCE, dot product"]["bias, trained"]["mean"]
    yield f"with an unbounded critic it is {far:.0f} nats where the truth is 6", REPRODUCE


def primal_dual():
    found = {
        (objective, critic): row["measures"]
        for (objective, critic, nats), row in of_experiment("primal-dual").items()
        if nats == 6
    }

    def value(name, critic="dot"):
        return shown(found[name, critic]["calibrated InfoNCE"])

    yield f"| InfoNCE, dot product | {value('InfoNCE')} |", REPRODUCE
    yield f"| FlatNCE, cosine | {value('FlatNCE', 'cosine')} |", REPRODUCE
    for name in ("FLO, u-head", "FLO, second critic", "FLO, u = −g + s(x)"):
        joint = f"{value(f'{name}, joint')}; {value(f'{name}, joint, K = 1')}"
        yield f"| {name}, joint; K = 1 | {joint} |", REPRODUCE
    yield f"| FLO, u-head, alternating | {value('FLO, u-head, alternating')} |", REPRODUCE
    name = "FLO, u = −g + s(x), alternating"
    failed = found[name, "dot"]["unstable"]["values"]
    yield f"| {name} | {value(name)}, {sum(failed):.0f} of {len(failed)} failed |", REPRODUCE
    yield f"| InfoNCE with one negative | {value('InfoNCE, K = 1')} |", REPRODUCE


def eager():
    ratios = defaultdict(dict)
    for device, measured in record("eager/results.json").items():
        for row in measured["rows"]:
            (_, base), *others = row["milliseconds"].items()
            for name, taken in others:
                ratios[device, name, row["group"], row["dtype"]][row["batch"]] = taken / base
    devices, controlled = ("cuda", "cpu"), "FlatNCE, EssController"

    def spans(name, dtype="float32", group="loss", digits=2):
        """The smallest and the largest ratio, for each device."""
        found = [ratios[device, name, group, dtype].values() for device in devices]
        return [[f"{end(each):.{digits}f}" for end in (min, max)] for each in found]

    later = [
        f"{row['milliseconds'][controlled] / row['milliseconds']['plain NT-Xent']:.2f}"
        for row in record("eager/short-h200.json")["rows"]
        if (row["group"], row["dtype"]) == ("loss", "float32")
    ]
    gpu, cpu = (" to ".join(span) for span in spans("FlatNCE"))
    yield f"loss): {gpu} on one H200 and {cpu} on a CPU (float32, batch", README
    gpu, cpu = (span[1] for span in spans("FlatNCE", "bfloat16"))
    yield f"**It is slower** in bfloat16, up to {gpu} and {cpu}, and with", README
    gpu, cpu = (span[1] for span in spans(controlled))
    yield f"`EssController`, up to {gpu} ({max(later)} in a later run) and {cpu}.", README
    given = "flatnce cross_entropy", "float32", "logits", 1
    gpu, cpu = (span[1] for span in spans(*given))
    yield f"on logits takes up to {gpu} and {cpu} times as long as torch's", README

    rows = {
        "FlatNCE": spans("FlatNCE"),
        "FlatNCE, bfloat16": spans("FlatNCE", "bfloat16"),
        "FlatNCE with `EssController`": spans(controlled),
        "FlatNCE with a `Monitor`": spans("FlatNCE, Monitor"),
        "NT-Xent with `torch.compile`": spans("plain NT-Xent, torch.compile"),
        "lightly's NTXentLoss": spans("lightly NTXentLoss", digits=1),
        "`cross_entropy` on logits, relative to torch's": spans(*given),
    }
    for name, found in rows.items():
        cells = " | ".join(" to ".join(span) for span in found)
        yield f"| {name} | 32 to 4,096 | {cells} |", RESULTS
    yield f"a later run | 32 and 1,024 | {' and '.join(later)} | |", RESULTS
    both = [
        f"{ratios['cpu', name, 'loss', 'float32'][32]:.2f}"
        for name in ("plain NT-Xent, torch.compile", "FlatNCE")
    ]
    assert both[0] < both[1]
    said = "`torch.compile` of NT-Xent is faster than FlatNCE on a CPU at 32"
    yield f"{said} ({both[0]} against {both[1]})", RESULTS


def throughput():
    parts = record("throughput/results.json")["parts"]
    parts = {name: part["rows"] for name, part in parts.items()}
    speeds, peers = (
        {(row["backbone"], row["batch"]): row["images_per_second"] for row in rows}
        for rows in (
            parts["train"],
            [row for row in parts["peers"] if row["name"].startswith("PIL")],
        )
    )

    def times(speed, peer):
        return f"{speed / peer:.{1 if speed / peer < 9.5 else 0}f}"

    for (net, batch), peer in peers.items():
        cells = f"{speeds[net, batch]:,.0f} | {peer:,.0f} | {times(speeds[net, batch], peer)}"
        yield f"| {net.replace('resnet', 'ResNet-')}, batch {batch} | {cells} |", SPEED
    swept, usual = parts["sweep"]["sweep"], peers["resnet18", 32]
    whole = swept["images_per_second"]
    yield f"in sum | {whole:,.0f} | {usual:,.0f} | {times(whole, usual)} |", SPEED
    small, large = speeds["resnet18", 32], speeds["resnet18", 256]
    ratios = times(small, usual), times(large, peers["resnet18", 256]), times(whole, usual)
    yield f"{small:,.0f} images/s at batch 32, {ratios[0]} times the usual script", README
    yield f"{small:,.0f} images/s at batch 32, {large:,.0f} at 256, eight parallel", RESULTS
    yield f"eight parallel runs at batch 32 {whole:,.0f} in total", RESULTS
    yield f"{ratios[0]}, {ratios[1]} and {ratios[2]} times the usual script", RESULTS
    yield f"and {small:,.0f} images/s", CHANGES
    yield f"{round(large, -2):,.0f} images/s at batch 256 was [measured]", REPRODUCE
    yield f"is less than the {whole:,.0f} of eight runs in parallel", REPRODUCE
    first, *_, later = (one["images_per_second_whole"] for one in swept["sweeps"])
    yield f"{first:,.0f} with compiling, {later:,.0f} as a later one", RESULTS
    elsewhere = 2255  # only the page of the benchmark has it
    yield f"H200 it reached {elsewhere:,} at batch 32", "benchmarks/throughput/README.md"
    yield f"it reached {elsewhere:,} images per second at batch 32", SPEED
    yield f"{elsewhere:,} at batch 32 on another machine: {small / elsewhere:.0f} times", RESULTS
    other = f"{small / elsewhere:.0f} times its speed [on another]"
    yield f"{ratios[0]} times the usual script on the same machine, {other}", README
    graph, plain = (record(f"throughput/accuracy-{n}.json")["seeds"] for n in ("graph", "plain"))
    knn, linear = (
        100 * fmean(apart([one[key] for one in graph], [one[key] for one in plain]))
        for key in ("knn", "linear")
    )
    yield minus(f"({knn:+.2f} and {linear:+.2f} points, three seeds"), RESULTS


def kernels():
    cases = {}
    for case in record("kernels/results.json")["cases"]:
        cases[case["name"]] = {method["name"]: method for method in case["methods"]}

    def ms(case, method):
        time = cases[case][method]["ms"]
        return f"{time:.{3 if time < 0.3 else 2 if time < 2 else 1 if time < 100 else 0}f}"

    def mib(case, method):
        return f"{cases[case][method]['memory_mib']:,.0f} MiB"

    def gib(case, method, digits=0):
        return f"{cases[case][method]['memory_mib'] / 1024:.{digits}f} GiB"

    ours, called, compiled = "fused: unit rows, ESS", "fused: FlatNCE, Monitor", "torch.compile"
    wide, simclr = "N = 65,536, d = 256", "SimCLR, N = 65,536, d = 128"
    for case, methods in cases.items():
        layout, rows, width = re.fullmatch(r"(.*?)(?:, )?N = (\S+), d = (\d+)", case).groups()
        if layout != "SimCLR":
            layout = f"two towers, {layout or 'one direction'}"
        timed = [name for name in (ours, called, compiled) if "ms" in methods[name]]
        cells = [f"{ms(case, name)} ms, {mib(case, name)}" for name in timed]
        yield f"| {layout}, {rows} rows of {width} | {' | '.join(cells)} |", SPEED
        if compiled in timed:
            each = [methods[compiled]["ms"] / methods[name]["ms"] for name in (ours, called)]
            digits = 1 if each[0] > 1.2 else 2
            ratios = ", ".join(f"{ratio:.{digits}f}" for ratio in each)
            yield f"| {cells[-1]} | {ratios} |", SPEED
    pairs = ms(wide, "fused: unit rows by Pairs, ESS")
    yield f"takes {pairs} ms at 65,536 rows of 256", SPEED
    yield f"the public ones need {pairs} ms for 65,536 rows of 256", RESULTS
    share = percent(cases[wide][ours]["share_of_floor"])
    yield f"{share} of the speed of torch's own large matrix product", RESULTS
    cells = [f"{ms(wide, ours)} ms, {mib(wide, ours)}"]
    cells += [f"{ms(wide, compiled)} ms, {gib(wide, compiled)}"]
    cells += [f"Inf-CL {ms(wide, 'Inf-CL (Triton)')} ms"]
    yield f"| 65,536 rows of 256, one direction | {' | '.join(cells)} |", RESULTS
    yield f"{ms(wide, ours)} ms for 65,536 rows of 256", CHANGES
    flex = ms(simclr, "FlexAttention lse")
    peers = [f"{cases[simclr][f'lightly {n}Loss']['ms']:,.0f}" for n in ("NTXent", "DCL")]
    cells = [f"{ms(simclr, ours)} ms", f"{ms(simclr, compiled)} ms"]
    cells += [f"FlexAttention {flex} ms, lightly {' and '.join(peers)} ms"]
    yield f"| 65,536 rows of 128, two views | {' | '.join(cells)} |", RESULTS
    most, liger = "N = 262,144, d = 512", "Liger fused linear CE"
    seconds = [f"{cases[most][name]['ms'] / 1000:.2f} s" for name in (ours, liger)]
    cells = f"{seconds[0]}, {gib(most, ours, 1)} | | Liger {seconds[1]}, {gib(most, liger, 1)}"
    yield f"| 262,144 rows of 512, one direction | {cells} |", RESULTS
    d768, d512 = "N = 65,536, d = 768", "N = 65,536, d = 512"
    cells = f"{ms(d512, ours)} ms | {ms(d512, compiled)} ms | |"
    yield f"| 65,536 rows of 512, one direction | {cells}", RESULTS
    cells = [f"{ms(d768, ours)} ms", f"{ms(d768, compiled)} ms, {gib(d768, compiled)}"]
    cells += [f"Liger {ms(d768, liger)} ms"]
    yield f"| 65,536 rows of 768, one direction | {' | '.join(cells)} |", RESULTS
    calls = {name: method["eager"]["ms"] for name, method in cases["N = 4,096, d = 256"].items()}
    later = cases["N = 16,384, d = 256"]
    assert round(calls[ours]) == round(later[ours]["eager"]["ms"]) == 3
    ends = [round(2 * own) / 2 for own in (calls[called], later[called]["eager"]["ms"])]
    yield f"about 3 ms of host time, or {ends[0]:g} to {ends[1]:g} with a Monitor", SPEED
    yield f"a call takes 3 to {ends[1]:g} ms of host time", RESULTS
    dense = [round(2 * calls[f"dense: {n}"]) / 2 for n in ("unit rows, ESS", "FlatNCE, Monitor")]
    yield f"The dense kernel takes {dense[0]:g} and {dense[1]:g}, and torch's", SPEED
    yield f"torch's cross-entropy about {calls['plain torch']:.1f}.", SPEED


def memory():
    found = record("memory/results.json")
    rows = {(row["n"], row["kernel"]): row for row in found["records"]}

    def gib(n, kernel, digits=1):
        return f"{median_high(rows[n, kernel]['extra_mib']) / 1024:.{digits}f}"

    chunked, dense = (gib(16384, kernel) for kernel in ("chunked", "dense"))
    seconds = [f"{median_high(rows[16384, n]['seconds']):.1f}" for n in ("chunked", "dense")]
    yield f"{chunked} GiB instead of {dense}, in {seconds[0]} instead of {seconds[1]} s", RESULTS
    least = f"{max(rows[32768, 'chunked']['extra_mib']) / 1024:.2f} GiB beyond the inputs"
    yield f"d = 128 in {least} against {gib(32768, 'dense', 0)} GiB", CHANGES
    many = "docs/howto/many-negatives.md"
    yield f"at 16,384 anchors {chunked} GiB where the dense kernel needs {dense}", many
    slow = max(row["ratio"][1] for row in found["speed"]["records"] if row["n"] == 256)
    yield f"up to {percent(slow - 1)} slower at 256 anchors", RESULTS


def size():
    rows = [line.split(" | ") for line in (BENCHMARKS / "size/README.md").read_text().splitlines()]
    (counts,) = (row[1:] for row in rows if row[0].startswith("| operations of forward and"))
    before, after = (count.strip(" |") for count in counts)
    words = "dispatched operations for forward and backward of two views at batch 32 instead of"
    yield f"{after} {words} {before} (", CHANGES
    program = (ROOT / "examples" / "cifar10.py").read_text(encoding="utf-8")
    yield f"`examples/cifar10.py`, {len(program.splitlines())} lines", README


def augmentation():
    rows = record("augmentation/results.json")["measurements"]
    small, large = (row["core"]["speed_up"]["median"] for row in rows)
    yield f"{small:.1f} times torchvision's speed on Pillow images per core at batch 32", RESULTS
    yield f"at batch 32, {large:.1f} times at batch 256", RESULTS
    yield f"{small:.1f} to {large:.0f} times torchvision's PIL transforms", CHANGES


def decoding():
    def ratios(commit):
        loading = record(f"decoding/results-h200-{commit}.json")["loading"]
        return loading["worst_round_over_the_peers_best_worst_round"]

    now = ratios("26b2c1b")
    share = record("decoding/results-h200-26b2c1b.json")["training"]["share"]
    yield f"{now['ours, cpu']:.2f} times torchvision's `ImageFolder`", RESULTS
    yield f"{now['ours, gpu']:.2f} times with nvJPEG", RESULTS
    yield f"trains from files at {percent(share['ours, cpu'])} of its speed", RESULTS
    yield f"training at {percent(share['ours, gpu'])} (goal 90)", RESULTS
    earlier = [ratios(commit) for commit in ("5ae143c", "88d6c3b", "928533c")]
    least, most = (
        [f"{end(run[way] for run in earlier):.2f}" for way in ("ours, cpu", "ours, gpu")]
        for end in (min, max)
    )
    yield f"{least[0]} to {most[0]} and {least[1]} to {most[1]} in four earlier runs", RESULTS


def streaming():
    for name, measures in (("tiny-imagenet", ("linear", "knn")), ("digits", ("linear",))):
        found = record(f"streaming/{name}.json")
        for measure in measures:
            files, inside = (
                # Shares of at most 2,000 images, stored in float32.
                spread([round(one[measure], 3) for one in found[way]], 1)
                for way in ("streaming", "resident")
            )
            label = measure.replace("knn", "kNN")
            yield f"{label} {files} against {inside}", RESULTS
    gaps = record("streaming/tiny-imagenet.json")["knn_gap"]["each"]
    half = student.ppf(0.975, len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    ends = minus(f"{fmean(gaps) - half:+.1f} to {fmean(gaps) + half:+.1f}")
    yield f"interval of the kNN difference is {ends} |", RESULTS


def precision():
    rows = record("precision/results.json")["logits"]["float32"]
    zero = {row["loss"]: set(row["zero_from"]) for row in rows if row["negatives"] == 31}
    assert zero["softplus"] == zero["flatnce"] == {None}  # never
    (margin,) = zero["cross_entropy"]
    yield f"is exactly 0 from a margin of {margin:g} in float32 (31 negatives)", RESULTS


def doctor():
    found = record("doctor/results.json")
    made, trained = (
        f"{found[name]['exactly_right']} of {found[name]['examinations']}"
        for name in ("made", "trained")
    )
    yield f"synthetic cases {made}; small trainings with a deliberate fault {trained}", RESULTS
    repeated, copied = (
        f"{kind['found']} of {kind['found'] + kind['missed']}"
        for name in ("false negatives", "duplicates")
        if (kind := found["trained"]["by_kind"][name])
    )
    yield f"images repeated under different augmentations ({repeated})", RESULTS
    # What was seen when the thresholds were chosen is only on the page of the benchmark.
    described = words_of("benchmarks/doctor/README.md")
    nearest = re.search(r"a good digits run \(kNN (\S+ %)\)", described)[1]
    yield f"In a digits run with a kNN accuracy of {nearest} they", "docs/doctor.md"
    clean = re.search(r"clean trainings were reported with (\d to \d %)", described)[1]
    yield f"the estimate was {clean} without repeated images", "docs/doctor.md"
    yield f"found copies of the same file in {copied} cases", "docs/howto/false-negatives.md"


def accuracy_of_mi():
    rows = record("mutual_information/accuracy.json")["rows"]
    off = {row["task"]: row["mean"] - row["true"] for row in rows if row["method"] == "auto"}
    truth = {row["task"]: row["true"] for row in rows}
    ratios, ahead = [], []
    for task, figures in record("mutual_information/bmi_figures.json")["rows"].items():
        errors = {name: abs(mean - truth[task]) for name, (mean, _) in figures.items()}
        own = abs(off[task])
        ratios.append(own / min(errors[name] for name in ("infonce", "nwj", "dv")))
        ahead.append(errors["cca"] < own)
        assert own < errors["ksg"] + 0.0005  # the figures have three decimals
    yield f"is {min(ratios):.2f} to {max(ratios):.2f} times that of bmi's best", RESULTS
    assert len(ratios) == 10
    yield f"are closer on **{sum(ahead)} of these ten**", RESULTS
    yield f"CCA was closer on {sum(ahead)} of ten", README
    spiral, edges = off["spiral-multinormal-sparse-25-25-2-2.0"], off["1v1-additive-0.1"]
    yield minus(f"{spiral:.2f} nats on spirals of 25 + 25 columns, {edges:.2f} on"), RESULTS


def coverage_of_mi():
    rows = record("mutual_information/coverage.json")["rows"]
    below = defaultdict(list)
    for row in rows:
        if row["part"] != "null":
            part = "laws" if row["part"] == "laws" else row["task"]
            below[part] += [low <= row["true"] for low in row["lower"]]
    laws = below.pop("laws")
    tasks = len({row["task"] for row in rows if row["part"] == "laws"})
    held = f"{sum(laws)} of {len(laws)} one-sided 95 % limits are below the truth"
    yield f"{held} on {tasks} distributions", RESULTS
    assert {len(each) for each in below.values()} == {100}
    *first, last = (str(sum(each)) for each in below.values())
    yield f"{', '.join(first)} and {last} of 100 where the margin is smallest", RESULTS
    small = record("mutual_information/null-cpu.json")["rows"]
    p_values, more = (
        [p for row in each if row["part"] == "null" for p in row["p_values"]]
        for each in (rows, small)
    )
    shares = [percent(sum(p <= 0.05 for p in each) / len(each), 1) for each in (p_values, more)]
    error = 100 * math.sqrt(0.05 * 0.95 / len(p_values))
    said = f"{shares[0]} had p ≤ 0.05 ({len(p_values)} data sets, standard error {error:.1f})"
    yield f"{said}, {shares[1]} in {len(more)} further", RESULTS


def speed_of_mi():
    cpu, cuda = (
        record(f"mutual_information/speed-{name}.json")["parts"] for name in ("cpu", "cuda")
    )
    usual, longest = (
        cpu[f"default, 10,000 rows, {task}"]["seconds"]
        for task in ("staircase 20 + 20", "spiral 3 + 3")
    )
    yield f"in {usual:.1f} s on two cores, {longest:.1f} s where training is longest", RESULTS
    large = cuda["default, 1,000,000 rows, staircase 20 + 20"]["seconds"]
    yield f"1,000,000 in {large:.0f} s on a GPU", RESULTS


def critics_in_small_batches():
    runs = defaultdict(lambda: defaultdict(list))
    for row in record("mutual_information/small_batches.json")["rows"]:
        case = row["batch"], row["nats"], row["method"], row["critic"]
        runs[case][row["scale"]].append(row)

    def best(*case):
        """Estimates at the scale that is best on validation rows."""
        chosen = max(runs[case].values(), key=lambda own: fmean(r["validation"] for r in own))
        return [row["estimate"] for row in chosen]

    gaps, verdicts = [], {}
    for batch, nats in {case[:2] for case in runs}:
        rival = max((best(batch, nats, "infonce", c) for c in ("cosine", "dot")), key=fmean)
        each = apart(best(batch, nats, "flatnce", "cosine"), rival)
        gaps.append(fmean(each))
        sure = abs(gaps[-1]) > 2 * stdev(each) / math.sqrt(len(each))
        verdicts[batch, nats] = ("win" if gaps[-1] > 0 else "loss") if sure else "tie"
    won = [case for case, verdict in verdicts.items() if verdict == "win"]
    wins, ties, losses = (list(verdicts.values()).count(v) for v in ("win", "tie", "loss"))
    assert {batch for batch, _ in won} == {8, 16, 32} and {nats for _, nats in won} == {8, 10}
    said = f"settings of batch size and information, of {len(gaps)}"
    yield f"{said} | in which the loss is better | {wins} | **{losses}** |", RESULTS
    said = f"FlatNCE is better by up to {max(gaps):.2f} nats, in batches of 8 to 32 with"
    yield f"{said} 8 and 10 nats. **It is worse by up to {-min(gaps):.2f} nats**", RESULTS
    yield f"There are {ties} ties.", RESULTS
    yield f"FlatNCE wins on {wins} of {len(gaps)} settings, ties on {ties} and", WHICH
    yield f"ties on {ties} and loses on {losses}", WHICH


def pitfalls():
    found = record("mutual_information/pitfalls.json")["figures"]["training_rows"]
    nats = f"{found['infonce, training rows']['mean']:.1f}"
    yield f"on training rows {nats} nats are found where there are none", RESULTS


RECORDS = [
    demo,
    weighting,
    small_batch,
    table_1,
    primal_dual,
    eager,
    throughput,
    kernels,
    memory,
    size,
    augmentation,
    decoding,
    streaming,
    precision,
    doctor,
    accuracy_of_mi,
    coverage_of_mi,
    speed_of_mi,
    critics_in_small_batches,
    pitfalls,
]


@pytest.mark.parametrize("found", RECORDS, ids=lambda found: found.__name__)
def test_pages_print_what_is_recorded(found):
    assert missing(found()) == []
