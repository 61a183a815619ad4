"""Is this installation whole? Versions that do not fit, tools that are missing, known breakages.

Packages are asked for their versions without being imported, except torch: one of the known
breakages steals credentials when it is imported.
"""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from flatnce.diagnose.findings import Diagnosis, Finding
from flatnce.environment import environment

LEAST_TORCH = "2.11"
COMPILERS = ("c++", "g++", "clang++", "cl")
COMPANIONS = ("torchvision", "torchaudio")
MALICIOUS_LIGHTNING = ("2.6.2", "2.6.3")
LEAST_TENSORBOARD = "2.21"
EQUAL_DCL = "1.5.21"
DEVICES, PCI = Path("/dev"), Path("/sys/bus/pci/devices")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison.

    Arguments:
        version: As a package gives it.

    Examples:
        >>> release("2.11.0+cu130") < release("2.15.0rc1")
        True
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def examine_installation() -> Diagnosis:
    """Check the installation, gravest first; a finding says what it keeps from working."""
    findings = [finding for check in _CHECKS for finding in check()]
    return Diagnosis("installation", tuple(findings), environment(), _without_a_card())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lightning() -> list[Finding]:
    found = _version("lightning")
    if found not in MALICIOUS_LIGHTNING:
        return []
    return [
        Finding(
            f"lightning {found} is malicious",
            "2.6.2 and 2.6.3 were uploaded by attackers and steal credentials when imported "
            "(advisory GHSA-w37p-236h-pfx3)",
            (
                "treat every token, key and password of this machine as stolen: change them",
                "uninstall it at once and make the environment anew: "
                "pip install 'lightning>=2.6.4'",
            ),
        )
    ]


def _torch() -> list[Finding]:
    found = _version("torch")
    remedy = (f"pip install 'torch>={LEAST_TORCH}'",)
    if found is None:
        return [Finding("torch is missing", "nothing works without it", remedy)]
    if release(found) < release(LEAST_TORCH):
        said = f"torch {found} is older than {LEAST_TORCH}, the oldest that flatnce is tested with"
        return [Finding("torch is too old", said, remedy)]
    try:
        torch = import_module("torch")
    except Exception as error:  # a library that cannot be loaded raises what it likes
        said = f"torch {found} cannot be imported: {error}"
        return [Finding("torch is broken", said, ("install it anew, with its own libraries",))]
    return _numpy_for(torch)


def _numpy_for(torch: Any) -> list[Finding]:
    try:
        torch.zeros(1).numpy()
    except RuntimeError as error:
        return [
            Finding(
                "numpy does not fit torch",
                f"torch cannot hand an array to numpy {_version('numpy')}: {error}",
                ("pip install --upgrade numpy torch",),
            )
        ]
    return []


def _companions() -> list[Finding]:
    """Packages built for one torch alone, which say so in their metadata."""
    torch, found = _version("torch"), []
    for package in COMPANIONS:
        have = _version(package)
        if have is None or torch is None:
            continue
        asked = _asked_torch(metadata.requires(package) or [])
        if asked is not None and release(asked) != release(torch)[: len(release(asked))]:
            found.append(
                Finding(
                    f"{package} does not fit torch",
                    f"{package} {have} is built for torch {asked}, and torch {torch} is "
                    "installed: importing it fails, for example with 'operator "
                    "torchvision::nms does not exist'",
                    (
                        f"pip install --upgrade torch {package}, both from one index",
                        f"or keep torch: pip install {package} 'torch=={torch.partition('+')[0]}'",
                    ),
                )
            )
    return found


def _asked_torch(requirements: Sequence[str]) -> str | None:
    """The one torch that requirements name; None where they leave a choice."""
    for line in requirements:
        found = re.match(r"torch\s*\(?==\s*([\d.]+)", line)
        if found:
            return found.group(1)
    return None


def _imported_torch() -> Any:
    """Torch, or None where it cannot be imported, which is told elsewhere."""
    if _version("torch") is None:
        return None
    try:
        return import_module("torch")
    except Exception:  # said already
        return None


def _gpu() -> list[Finding]:
    torch = _imported_torch()
    if torch is None:
        return []
    if torch.cuda.is_available():
        return [*_architecture(torch), *_triton()]
    sign = _sign_of_a_card()
    if torch.version.cuda is None or not sign:
        return []
    return [
        Finding(
            "no GPU for this torch",
            f"there is {sign}, but torch, built for CUDA {torch.version.cuda}, finds no usable "
            "NVIDIA driver or card: everything runs on the CPU",
            (
                "install or update the card's driver, then look at nvidia-smi",
                "in a container: start it with access to the card (--gpus all)",
                "look whether CUDA_VISIBLE_DEVICES hides it",
            ),
        )
    ]


def _sign_of_a_card() -> str:
    """What tells of an NVIDIA card, whether or not its driver works; empty where nothing does."""
    if shutil.which("nvidia-smi"):
        return "nvidia-smi on the path"
    if any(DEVICES.glob("nvidia[0-9]*")):
        return f"an NVIDIA device in {DEVICES}"
    for card in PCI.glob("*/vendor"):
        try:
            vendor, kind = card.read_text(), card.with_name("class").read_text()
        except OSError:
            continue
        # NVIDIA, and a display controller (its sound and network cards are none).
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return "an NVIDIA card on the PCI bus"
    return ""


def _without_a_card() -> tuple[str, ...]:
    """That a CUDA build runs on a machine without a card is worth a word, and no fault."""
    torch = _imported_torch()
    if torch is None or torch.version.cuda is None or torch.cuda.is_available():
        return ()
    if _sign_of_a_card():
        return ()
    return (
        f"anything on a GPU: torch is built for CUDA {torch.version.cuda} and there is no sign of "
        "an NVIDIA card, so everything runs on the CPU; in a container that should have one, "
        "start it with --gpus all; torch's CPU build is smaller",
    )


def _architecture(torch: Any) -> list[Finding]:
    if torch.version.cuda is None:
        return []
    major, minor = torch.cuda.get_device_capability()
    # Code for one minor version runs on later ones of the same major; PTX on all later cards.
    built = [re.match(r"(sm|compute)_(\d+)(\d)", name) for name in torch.cuda.get_arch_list()]
    for found in filter(None, built):
        kind, big, small = found.group(1), int(found.group(2)), int(found.group(3))
        same = big == major and small <= minor
        if same or (kind == "compute" and (big, small) <= (major, minor)):
            return []
    return [
        Finding(
            "torch has no code for this GPU",
            f"the card has compute capability {major}.{minor}, and torch {torch.__version__} is "
            f"built for {', '.join(torch.cuda.get_arch_list()) or 'none'}",
            ("install a torch that is built for it, from the index of a newer CUDA",),
        )
    ]


def _triton() -> list[Finding]:
    if any(_version(name) for name in ("triton", "pytorch-triton", "triton-windows")):
        return []
    return [
        Finding(
            "Triton is missing",
            "there is a GPU and no Triton: the fused kernels and torch.compile fall back or fail",
            ("pip install triton, of the version that torch asks for",),
        )
    ]


def _compiler() -> list[Finding]:
    named = os.environ.get("CXX")
    if any(shutil.which(name) for name in ((named,) if named else COMPILERS)):
        return []
    looked = f"CXX={named}" if named else ", ".join(COMPILERS)
    return [
        Finding(
            "no C++ compiler",
            f"none of {looked} is on the path: torch.compile cannot build for the CPU, everything "
            "else works",
            (
                "on Debian and Ubuntu: apt install g++",
                "on macOS: xcode-select --install",
                "without one: leave torch.compile out on the CPU",
            ),
        )
    ]


def _others() -> list[Finding]:
    found = []
    board = _version("tensorboard")
    if board is not None and release(board) < release(LEAST_TENSORBOARD):
        said = (
            f"tensorboard {board} is older than {LEAST_TENSORBOARD}, the oldest that flatnce is "
            "tested with"
        )
        remedy = (f"pip install 'tensorboard>={LEAST_TENSORBOARD}'",)
        found.append(Finding("tensorboard is too old", said, remedy))
    lightly = _version("lightly")
    if lightly is not None and release(lightly) < release(EQUAL_DCL):
        said = f"up to {EQUAL_DCL}, excluded, its DCLLoss has not DCL's gradient; it is {lightly}"
        remedies = (f"pip install 'lightly>={EQUAL_DCL}'", "or use flatnce.DCL")
        found.append(Finding("lightly's DCLLoss is another loss", said, remedies))
    return found


_CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    _lightning,
    _torch,
    _companions,
    _gpu,
    _others,
    _compiler,
)
