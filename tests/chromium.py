"""A headless Chromium driven through its debugging pipe: no driver, no port, no other package."""

import base64
import fcntl
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

OPTIONS = [
    *"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run".split(),
    *"--disable-background-networking --disable-component-update --disable-sync".split(),
    *"--hide-scrollbars --remote-debugging-pipe".split(),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# The browser reads descriptor 3 and writes 4.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0
# A script that returns what keeps a page from being used by everyone.
PROBLEMS = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")


class Chromium:
    """One window. What the page asks for and what it complains of is kept.

    Use it as a context manager.
    """

    def __init__(self, browser: str, folder: Path):
        self.requests, self.complaints = [], []
        self.numbers, self.waiting = itertools.count(1), b""
        there, self.answers = self._pipes()
        command = [browser, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        starter = [sys.executable, "-S", "-E", "-c", START, *map(str, there), *command]
        self.process = subprocess.Popen(starter, pass_fds=there, **quiet)
        for end in there:
            os.close(end)

    def __enter__(self):
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    session = None

    def _pipes(self):
        read_there, self.commands = os.pipe()
        answers, write_there = os.pipe()
        there = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_there, write_there))
        for end in (read_there, write_there):
            os.close(end)
        return there, answers

    def __exit__(self, *_):
        os.close(self.commands)
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        os.close(self.answers)

    def ask(self, method: str, **parameters) -> dict:
        """Send a command and return its answer; what arrives before is taken note of."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.answers], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            part = os.read(self.answers, 1 << 20)
            assert part, "the browser has ended"
            self.waiting += part
        line, _, self.waiting = self.waiting.partition(b"\0")
        event = json.loads(line)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, found: dict) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.complaints.append(str(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])

    def open(self, address: str, *, dark: bool = False, width: int = 1100, height: int = 900):
        """Go to an address, in a theme and at a width, and wait until it is there."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[theme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Page.navigate", url=address)
        self.until(lambda: self.run("document.readyState") == "complete")

    def run(self, expression: str):
        """The value of an expression in the page."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.ask("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, "what was waited for did not come"
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and let go of a key."""
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.ask("Input.dispatchKeyEvent", **same, **down)
        self.ask("Input.dispatchKeyEvent", **same, type="keyUp")

    def picture(self, whole: bool = True) -> bytes:
        """The page as a PNG."""
        asked = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            asked["clip"] = clip
        return base64.b64decode(self.ask("Page.captureScreenshot", **asked)["data"])
