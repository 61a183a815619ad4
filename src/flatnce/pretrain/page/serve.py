"""Serve a page on this machine only; the page follows its runs."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

from flatnce.pretrain.page.inspection import FILE
from flatnce.report.page import Page, render_page

__all__ = ["serve"]

HOST = "127.0.0.1"  # never another: the page is for this machine only
POLICY = re.compile('http-equiv="Content-Security-Policy" content="([^"]+)"')
MOST = 32  # connections at once
_slots = BoundedSemaphore(MOST)
WATCHED = ("config.json", "environment.json", "metrics.jsonl", "results.json", FILE)


def state_of(directories: Sequence[Path]) -> str:
    """A short text that changes with every change of a file of the runs."""
    files = [directory / name for directory in directories for name in WATCHED]
    found = [path.stat() for path in files if path.is_file()]
    return str(hash(tuple((one.st_mtime_ns, one.st_size) for one in found)))


@contextmanager
def serve(
    directories: Sequence[Path], page: Callable[[], Page], port: int = 0
) -> Iterator[tuple[str, Thread]]:
    """Serve one page during the block; yield its address and the thread that answers."""
    answers = {"directories": directories, "page": staticmethod(page)}
    handler = type("Handler", (_Handler,), answers)
    try:
        server = _Server((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise OSError(f"port={port} on {HOST}: {error}; name another, or 0") from error
    with server:
        answering = Thread(target=server.serve_forever, daemon=True)
        answering.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}/", answering
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    """Answers so many connections at once, and drops further ones."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, if there are not too many."""
        if _slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, which then ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            _slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a connection that breaks is the other side's matter."""


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and its state that use a loopback name."""

    timeout = 10.0  # seconds that a connection may be silent

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

    def _answer_with_page(self) -> None:
        # Before the files are read: what is written meanwhile is a newer state.
        state = state_of(self.directories)
        try:
            text = render_page(type(self).page(), live=state)
        except Exception as error:  # the files of a run may hold anything
            self._answer(503, "text/plain", f"{error}\n")
        else:
            self._answer(200, "text/html", text)

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        found = POLICY.search(text)  # of the page; a line of text needs nothing
        policy = found[1] if found else "default-src 'none'"
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: the terminal belongs to the command."""
