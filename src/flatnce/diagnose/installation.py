"""Check this installation: versions that do not fit, missing tools, known defects.

Packages are asked for their versions without being imported, except torch: one of the known
defects steals credentials when it is imported.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from flatnce.diagnose.findings import Diagnosis, Finding, finding, not_known
from flatnce.environment import environment, installed_version

LEAST_TORCH = "2.11"
COMPILERS = ("c++", "g++", "clang++", "cl")
DEVICES, PCI = Path("/dev"), Path("/sys/bus/pci/devices")

_finding = partial(finding, within="installation")


def examine_installation() -> Diagnosis:
    """Check the installation, the most serious finding first; each says what does not work."""
    torch, broken = _torch()
    lost = torch is not None and torch.version.cuda and not torch.cuda.is_available()
    unknown: tuple[str, ...] = ()
    found = [*broken, *_companions()]
    if (lightning := installed_version("lightning")) in ("2.6.2", "2.6.3"):
        found.insert(0, _finding("lightning {installed} is malicious", installed=lightning))
    if lost and _has_card():
        found.append(_finding("no GPU for this torch", cuda=torch.version.cuda))
    elif lost:  # a note, not a finding
        unknown = (not_known("card", cuda=torch.version.cuda),)
    elif torch is not None and torch.cuda.is_available():
        if not any(map(installed_version, ("triton", "pytorch-triton", "triton-windows"))):
            found.append(_finding("Triton is missing"))
    dcl = "lightly's DCLLoss is another loss"
    found += [*_too_old("tensorboard", "2.21"), *_too_old("lightly", "1.5.21", dcl)]
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((named,) if named else COMPILERS)):
        tried = f"CXX={named}" if named else ", ".join(COMPILERS)
        found.append(_finding("no C++ compiler", tried=tried))
    return Diagnosis("installation", tuple(found), environment(), unknown)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _torch() -> tuple[Any, list[Finding]]:
    """Torch, or None where it cannot be imported, and what is wrong with it."""
    installed = installed_version("torch")
    if installed is None:
        return None, [_finding("torch is missing", least=LEAST_TORCH)]
    try:
        torch = import_module("torch")
    except Exception as error:  # a library that cannot be loaded raises any exception
        return None, [_finding("torch is broken", installed=installed, error=error)]
    found = list(_too_old("torch", LEAST_TORCH))
    try:
        torch.zeros(1).numpy()
    except RuntimeError as error:
        numpy = installed_version("numpy")
        found.append(_finding("numpy does not fit torch", installed=numpy, error=error))
    return torch, found


def _too_old(package: str, least: str, kind: str = "{package} is too old") -> Iterator[Finding]:
    installed = installed_version(package)
    if installed is not None and _release(installed) < _release(least):
        yield _finding(kind, package=package, installed=installed, least=least)


def _companions() -> Iterator[Finding]:
    """Packages built for one torch only, which say so in their metadata."""
    torch = installed_version("torch")
    for package in ("torchvision", "torchaudio"):
        installed = installed_version(package)
        if installed is None or torch is None:
            continue
        needs = "\n".join(metadata.requires(package) or [])
        required = re.search(r"^torch\s*\(?==\s*([\d.]+)", needs, re.MULTILINE)
        wanted = required.group(1) if required else ""
        for_cuda = "+cpu" in torch and "+cpu" not in installed
        if for_cuda or _release(wanted) != _release(torch)[: len(_release(wanted))]:
            versions: dict[str, Any] = {"installed": installed, "wanted": wanted, "torch": torch}
            versions |= {"package": package, "release": torch.partition("+")[0]}
            yield _finding("{package} does not fit torch", **versions)


def _has_card() -> bool:
    """Whether there is a sign of an NVIDIA card, whether or not its driver works."""
    if shutil.which("nvidia-smi") or any(DEVICES.glob("nvidia[0-9]*")):
        return True
    return any(path.read_text().strip() == "0x10de" for path in PCI.glob("*/vendor"))
