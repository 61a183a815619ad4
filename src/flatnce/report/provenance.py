"""Where a page's numbers come from: command, device, versions."""

import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["origin_of"]


def origin_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Names and values for the foot of a page.

    Arguments:
        environment: As in ``environment.json``; what it does not say is left out.

    Examples:
        >>> origin_of({"command": ["flatnce", "train", "my digits"], "python": "3.11.2"})
        {'Command': "flatnce train 'my digits'", 'Python': '3.11.2'}
    """
    # An installed package has no commit: its version says which it is.
    commit, release = environment.get("commit"), environment.get("flatnce")
    threads = environment.get("threads")
    device = environment.get("device")
    found = {
        "Command": shlex.join(environment.get("command", [])),
        "Device": f"{device} ({threads} threads)" if device and threads else device,
        "flatnce": f"{release}, commit {commit}" if release and commit else release,
        "Python": environment.get("python"),
        "torch": environment.get("torch"),
        "numpy": environment.get("numpy"),
        "Platform": environment.get("platform"),
    }
    return {name: str(value) for name, value in found.items() if value}
