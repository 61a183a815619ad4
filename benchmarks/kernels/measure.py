"""Time and memory of a step, on a GPU or (for a smoke run) on a CPU."""

import contextlib
import gc
import random
import statistics
import time

import torch

MOST_ROUNDS, LEAST_REPEATS = 30, 5
EAGER_ROUNDS = 10
LEAST_SECONDS = 2e-3
"""The least duration of a sample; shorter steps are repeated within it."""
MOST_IN_A_GRAPH = 24 * 2**30
"""A step that holds more is not recorded: all recorded steps of a row keep their memory."""


class Step:
    """Forward and backward of one method on a row's inputs, and its measurements."""

    def __init__(self, method, function, inputs):
        self.method, self.function, self.inputs = method, function, inputs
        self.graph, self.samples, self.rounds, self.found = None, [], [], {}
        self.eager = []
        self.estimate = 0.0

    def run(self):
        """Forward and backward, as an ordinary call."""
        for z in self.inputs:
            z.grad = None
        loss = self.function(*self.inputs)
        loss.backward()
        return loss.detach()

    def launch(self):
        """The recorded step where there is one."""
        if self.graph is None:
            self.run()
        else:
            self.graph.replay()

    def close(self):
        """Give the memory back."""
        self.graph = self.function = None
        for z in self.inputs:
            z.grad = None


def make_inputs(case, device, seed=0):
    """Rows of unit norm in bfloat16; partners at a cosine of about 0.7."""
    generator = torch.Generator(device).manual_seed(seed)
    b = case.n // 2 if case.layout == "simclr" else case.n

    def draw():
        return torch.randn(b, case.d, generator=generator, device=device, dtype=torch.bfloat16)

    z1 = draw()
    z2 = torch.nn.functional.normalize(z1 + draw(), dim=1).requires_grad_()
    z1 = torch.nn.functional.normalize(z1, dim=1).requires_grad_()
    return z1, z2


def clean():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        # After a failed recording the allocator may refuse; the cache does not matter then.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def seconds_of(launch, calls, device):
    """Seconds per call: between two CUDA events, or by the clock on a CPU."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            launch()
        return (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def warm(step, base, device):
    """First calls, then the peak of memory over one call: inputs and gradients included."""
    began = time.perf_counter()
    step.run()
    clean()
    step.found["first_call_s"] = round(time.perf_counter() - began, 3)
    if device.type == "cuda":
        for z in step.inputs:
            z.grad = None
        torch.cuda.reset_peak_memory_stats()
    loss = step.run()
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
        step.found["memory_mib"] = round((peak - base) / 2**20, 1)
    step.found["loss"] = round(float(loss), 5)
    seconds_of(step.run, 1, device)
    step.estimate = seconds_of(step.run, 2, device)
    step.found["eager_ms"] = round(1e3 * step.estimate, 4)


def record(step, device):
    """The step as a CUDA graph, or the reason why it cannot be recorded."""
    step.found["timed"] = "eager"
    if device.type != "cuda":
        return
    if step.method.reads_device:
        step.found["not_recorded"] = "it reads from the device inside"
        return
    if step.found["memory_mib"] * 2**20 > MOST_IN_A_GRAPH:
        step.found["not_recorded"] = "too large to keep beside the others"
        return
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            step.run()
        torch.cuda.synchronize()
        for z in step.inputs:
            z.grad = None
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step.run()
    except Exception as error:
        torch.cuda.synchronize()
        step.found["not_recorded"] = first_line(error)
        return
    step.graph = graph
    step.found["timed"] = "graph"
    graph.replay()
    step.estimate = seconds_of(graph.replay, 2, device)


def in_rounds(steps, device, bound, rounds=MOST_ROUNDS):
    """Every step in turn, round after round, so that all see the GPU in the same state."""
    for number, step, calls in turns(steps, bound, rounds, lambda step: step.estimate):
        step.samples.append(seconds_of(step.launch, calls, device))
        step.rounds.append(number)


def eager_in_rounds(steps, device, bound, rounds=EAGER_ROUNDS):
    """The same with ordinary calls, also for recorded steps."""
    for _, step, calls in turns(steps, bound, rounds, lambda step: step.found["eager_ms"] / 1e3):
        step.eager.append(seconds_of(step.run, calls, device))


def turns(steps, bound, rounds, seconds):
    """Round, step and calls of each turn. The order differs between rounds.

    A slow step that heats the GPU, or a pause, changes the speed of the next step.
    """
    plan = {}
    for step in steps:
        estimate = max(seconds(step), 1e-6)
        calls = max(1, round(LEAST_SECONDS / estimate))
        repeats = min(rounds, max(LEAST_REPEATS, int(bound / (estimate * calls))))
        plan[step] = calls, max(1, rounds // repeats)
    order = list(plan)
    draw = random.Random(0)
    for number in range(rounds):
        draw.shuffle(order)
        for step in order:
            calls, every = plan[step]
            if number % every == 0:
                yield number, step, calls


def summary(samples):
    """Median and quartiles, in milliseconds."""
    ordered = sorted(1e3 * sample for sample in samples)
    low, _, high = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else ordered * 3
    middle = statistics.median(ordered)
    return {
        "ms": round(middle, 4),
        "quartiles_ms": [round(low, 4), round(high, 4)],
        "repeats": len(ordered),
    }


def paired_ratio(first, second):
    """Median and quartiles of the ratio of two steps' samples of the same round."""
    taken = [dict(zip(step.rounds, step.samples, strict=True)) for step in (first, second)]
    ratios = [taken[0][number] / taken[1][number] for number in sorted(taken[0].keys() & taken[1])]
    if len(ratios) < 2:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}


def matmul_rate(device, side=8192):
    """Operations per second of torch's bfloat16 matrix product on this device."""
    side = side if device.type == "cuda" else 256
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(50):
        a @ b
    samples = [seconds_of(lambda: a @ b, 5, device) for _ in range(10)]
    return 2 * side**3 / statistics.median(samples)


def first_line(error):
    """What went wrong, in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"
