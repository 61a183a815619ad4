"""Serve a page on this machine only; the page follows its runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from flatnce.pretrain.page.inspection import FILE
from flatnce.report.page import Page, render_page

__all__ = ["serve"]

HOST = "127.0.0.1"  # never another: the page is for this machine only
WATCHED = ("config.json", "environment.json", "metrics.jsonl", "results.json", FILE)


def state_of(directories: Sequence[Path]) -> str:
    """A short text that changes with every change of a file of the runs."""
    files = [directory / name for directory in directories for name in WATCHED]
    found = [path.stat() for path in files if path.is_file()]
    return (
        f"{len(found)}-{sum(one.st_mtime_ns for one in found)}-{sum(one.st_size for one in found)}"
    )


@contextmanager
def serve(
    directories: Sequence[Path], page: Callable[[], Page], port: int = 0
) -> Iterator[tuple[str, Thread]]:
    """Serve one page during the block; yield its address and the thread that answers."""
    answers = {"directories": directories, "page": staticmethod(page)}
    handler = type("Handler", (_Handler,), answers)
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise OSError(f"port={port} on {HOST}: {error}; name another, or 0") from error
    with server:
        answering = Thread(target=server.serve_forever, daemon=True)
        answering.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}/", answering
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and its state that use a loopback name."""

    directories: Sequence[Path]
    page: Callable[[], Page]

    def do_GET(self) -> None:
        """Answer one request."""
        name = self.headers.get("Host", "").partition(":")[0]
        if name not in ("localhost", HOST):
            self._answer(403, "text/plain", "this page is for this machine only\n")
        elif self.path == "/state":
            self._answer(200, "text/plain", state_of(self.directories))
        elif self.path == "/":
            self._answer_with_page()
        else:
            self._answer(404, "text/plain", "there is one page here: /\n")

    do_HEAD = do_GET

    def _answer_with_page(self) -> None:
        # Before the files are read: what is written meanwhile is a newer state.
        state = state_of(self.directories)
        try:
            text = render_page(type(self).page(), live=state)
        except (ValueError, OSError) as error:
            self._answer(503, "text/plain", f"{error}\n")
        else:
            self._answer(200, "text/html", text)

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: the terminal belongs to the command."""
