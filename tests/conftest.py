"""What every test may ask for: the same seed, a compiler, a browser, a fresh interpreter."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

# Timing is not what properties are about, and a failure must be seen again on the next run.
settings.register_profile("flatnce", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("flatnce")

# Without a card, Triton's kernels run in its interpreter; it is asked when they are defined.
CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _no_terminal(*_):
    raise OSError("tests have no terminal")


# Lines are wrapped at the width of the terminal in which the tests were started, otherwise.
os.environ.pop("COLUMNS", None)
os.get_terminal_size = _no_terminal

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMPILERS = ("c++", "g++", "clang++")


def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" in os.environ:
        # As many threads as cores in each of as many workers as cores is slower than one.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption(
        "--one-of-each",
        action="store_true",
        help="of every test function only the first parameters",
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--one-of-each"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        kept = {id(item) for item in first.values()}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]


@pytest.fixture(autouse=True)
def _same_start():
    if CUDA:
        torch.manual_seed(0)
    else:  # that also notes, with a whole stack, the seed of every device that is not there
        torch.default_generator.manual_seed(0)


@pytest.fixture
def compiler() -> str:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return found or pytest.skip("no C++ compiler, which torch.compile needs; see .ci/run")


@pytest.fixture(scope="session")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or pytest.skip("no chromium to render the page with; see .ci/run")


@pytest.fixture
def plain_charts():
    """Charts without drawings, which take most of a page's time, for tests that read no chart."""
    from flatnce.report.charts import Chart

    empty = '<svg class="chart" role="img"><title>{}</title></svg>'
    with pytest.MonkeyPatch.context() as patch:  # of its own, which no test undoes
        patch.setattr(Chart, "svg", lambda self: empty.format(self.title))
        yield


@pytest.fixture(scope="module")
def window(browser, tmp_path_factory):
    """One browser window for all tests of a file: a start takes long."""
    from chromium import Chromium

    with Chromium(browser, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def chromium(window):
    """The window with an empty page and nothing noted."""
    window.open("about:blank")
    window.requests.clear()
    window.complaints.clear()
    return window


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Run code in a fresh interpreter and return what it printed.

    The shape checks that pytest hooks into flatnce do not follow it there. torch.compile with
    fullgraph=True needs this: it cannot trace the checks.
    """

    def run(code: str, *arguments: str, timeout: float = 300) -> str:
        command = [sys.executable, "-W", "error", "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
