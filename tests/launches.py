"""Compile Triton kernels for a CUDA device that is not here, with the arguments of real launches.

A test file runs itself as a script: Triton's interpreter, which pytest switches on, accepts code
that the compiler refuses, and has no limit of memory.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

triton = pytest.importorskip("triton", reason="no Triton on this platform")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import JITFunction
from triton.runtime.jit import create_function_from_signature


def print_shared_memory(launch: Callable[[], None], card: int) -> None:
    """Print bytes of shared memory by kernel, types and switches, for a compute capability.

    Launches are recorded, not executed; of those that differ only in sizes, the first.
    """
    target = GPUTarget("cuda", card, 32)
    backend, found = make_backend(target), {}

    def record(kernel, *arguments, grid, warmup, **named):
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, options = bind(*arguments, **named)
        packed = kernel._pack_args(backend, named, bound, specialization, options)
        _, signature, constants, _ = packed
        switches = [value for value in constants.values() if isinstance(value, bool)]
        name = f"{kernel.__name__} {list(signature.values())} {switches}"
        found.setdefault(name, (kernel, *packed))

    JITFunction.run = record
    launch()
    taken = {}
    for name, (kernel, options, signature, constants, attributes) in found.items():
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=target, options=options.__dict__)
        taken[name] = made.metadata.shared
    print(json.dumps(taken))


def shared_memory(script: str, *arguments: str) -> dict[str, int]:
    """What a test file prints as a script; by kernel, the most that one of its variants takes."""
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    alone["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, script, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert ran.returncode == 0, ran.stderr[-2000:]
    most: dict[str, int] = {}
    for name, taken in json.loads(ran.stdout).items():
        kernel = name.partition(" ")[0]
        most[kernel] = max(taken, most.get(kernel, 0))
    return most
