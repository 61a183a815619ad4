"""Options and output of the commands that write pages, and serving a page."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from flatnce.pretrain.page.serve import loopback_of, serve
from flatnce.report.charts import FORMATS
from flatnce.report.page import Page


@dataclass(frozen=True)
class PageOptions:
    """Where a page is written, and what is written with it.

    Arguments:
        out: The file; by default report.html in the run's directory, of several runs
            comparison.html here.
        watch: Serve the page on this machine and follow the run while it goes on.
        host: Where to serve: 127.0.0.1 or another loopback address.
        port: Where to serve; any free port by default.
        figures: Also write every chart for a paper into this folder.
        formats: Of these figures.
        json: Print what was found as JSON and nothing else.
    """

    out: Path | None = None
    watch: bool = False
    host: str = "127.0.0.1"
    port: int = 0
    figures: Path | None = None
    formats: tuple[str, ...] = FORMATS
    json: bool = False

    def __post_init__(self) -> None:
        loopback_of(self.host)


def say(
    page: Path,
    figures: Sequence[Path],
    *,
    as_json: bool,
    left_out: str = "",
    **more: object,
) -> None:
    """Print what was written."""
    if as_json:
        plain = {"page": str(page), "figures": list(map(str, figures)), "left_out": left_out}
        print(json.dumps({**plain, **more}), flush=True)
        return
    if left_out:
        print(left_out)
    print(f"the page: {page}", flush=True)
    if figures:
        print(f"{len(figures)} figures in {figures[0].parent}", flush=True)


@contextmanager
def served(
    directories: Sequence[Path], page: Callable[[], Page], options: PageOptions
) -> Iterator[None]:
    """With ``--watch``, serve a page during the block and then until Ctrl-C.

    The address is printed first, because the block may take a while. With ``--json`` it is
    printed after the output of the block.
    """
    if not options.watch:
        yield
        return
    with serve(directories, page, host=options.host, port=options.port) as server:
        address = f"http://{options.host}:{server.server_address[1]}/"
        answering = Thread(target=server.serve_forever, daemon=True)
        answering.start()
        try:
            if not options.json:
                print(f"{address} follows the run; stop with Ctrl-C", flush=True)
            yield
            if options.json:
                print(json.dumps({"address": address}), flush=True)
            with suppress(KeyboardInterrupt):
                while answering.is_alive():
                    answering.join(1.0)  # with a timeout, so that Ctrl-C is noticed
        finally:
            server.shutdown()
