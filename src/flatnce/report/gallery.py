"""Pictures in rows: an image, and what lies nearest to it."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Gallery", "Picture"]


@dataclass(frozen=True)
class Picture:
    """One small picture with words under it.

    Arguments:
        source: A ``data:`` address of an image; empty for words alone.
        text: Shown under it.
        words: What a screen reader says instead of the picture.
        marked: Whether it is set off from the others, as of another class.
    """

    source: str
    text: str
    words: str
    marked: bool = False

    def __post_init__(self) -> None:
        if self.source and not self.source.startswith(("data:image/png;", "data:image/jpeg;")):
            raise ValueError(
                f"source={self.source[:40]!r} is no picture that a page can hold; pass a data: "
                "address of a PNG or JPEG image"
            )


@dataclass(frozen=True)
class Gallery:
    """A table of pictures.

    Arguments:
        caption: What it shows.
        header: Column names.
        rows: Of pictures, as many each as there are columns; the first names the row.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Picture]]
