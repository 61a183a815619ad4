"""The fused kernels compile for cards that are not here, and fit into their fast memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

script = pytest.importorskip("compiled_kernels", reason="no Triton on this platform")

CARDS = [
    pytest.param(card, marks=() if card == 90 else pytest.mark.slow) for card in script.FAST_MEMORY
]


@pytest.mark.parametrize("card", CARDS)
def test_every_kernel_compiles_and_fits(card):
    """The interpreter takes what the compiler refuses; it also knows no limit of memory."""
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, Path(script.__file__), str(card)],
        capture_output=True,
        text=True,
        env=alone,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    taken = json.loads(ran.stdout)
    assert len(taken) == 12
    assert max(taken.values()) <= script.FAST_MEMORY[card], taken
