"""Pages of training runs: of one run, and of several to compare."""

import re
from dataclasses import dataclass

from flatnce.messages import check_fields
from flatnce.toml_files import read_toml

__all__ = ["InspectionOptions", "loopback_of"]

CATALOGUE = read_toml(__file__, "charts.toml")
TEXT: dict[str, str] = CATALOGUE["text"]


@dataclass(frozen=True)
class InspectionOptions:
    """How much of the encoder is inspected."""

    images: int = 1000  #: Images drawn from the test set.
    queries: int = 6  #: Images whose nearest neighbours are shown.
    neighbours: int = 5  #: Neighbours shown of each.
    pictures: bool = True  #: Keep small pictures of them; --no-pictures keeps only their labels.
    seed: int = 0  #: Seed of every draw.

    def __post_init__(self) -> None:
        check_fields(self, images=10, queries=1, neighbours=1, seed=0)


def loopback_of(host: str) -> str:
    """Return the host if it is a loopback address or ``localhost``; else raise."""
    if host != "localhost" and not re.fullmatch(r"127(\.\d{1,3}){3}", host):
        raise ValueError(
            f"host={host!r} can be reached from other machines or is not an address; the page is "
            "served on 127.0.0.1 only (from elsewhere: ssh -L PORT:127.0.0.1:PORT)"
        )
    return host
