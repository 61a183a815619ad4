"""The watched page's server: this machine only, one page, its state."""

import http.client
import socket
import threading
from urllib.parse import urlsplit

import pytest

from flatnce.pretrain.page.run import page_of_run
from flatnce.pretrain.page.serve import MOST, _Handler, serve, state_of
from flatnce.pretrain.runs.log import RunLog
from made_runs import write_run


@pytest.fixture
def place(tmp_path):
    return write_run(tmp_path / "going", finished=False)


@pytest.fixture
def ask(place, plain_charts):
    """Ask the server of a run's page; returns status, headers and text."""
    with serve([place], lambda: page_of_run(place)) as (address, _):
        where = urlsplit(address)

        def get(path="/", method="GET", host=where.netloc):
            connection = http.client.HTTPConnection(where.netloc, timeout=30)
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            found = answer.status, answer.headers, answer.read().decode()
            connection.close()
            return found

        get.port = where.port
        yield get


def test_a_port_in_use_is_named(ask, place):
    with (
        pytest.raises(OSError, match=f"port={ask.port} on 127.0.0.1: .*name another"),
        serve([place], lambda: page_of_run(place), port=ask.port),
    ):
        pass


def test_the_page_has_its_state_and_a_script_of_its_own(ask, place):
    status, headers, text = ask()
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert f'data-state="{state_of([place])}"' in text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and policy.endswith("; frame-ancestors 'none'")
    assert policy.removesuffix("; frame-ancestors 'none'") in text
    assert ask("/state")[1]["Content-Security-Policy"].startswith("default-src 'none'; frame")
    assert "script-src 'sha256-" in text and "connect-src 'self'" in text


def test_the_state_changes_when_the_run_goes_on(ask, place):
    _, _, before = ask("/state")
    assert ask("/state")[2] == before
    RunLog.reopen(place, kind="train", step=400).log({"kind": "note", "step": 400})
    assert ask("/state")[2] != before


@pytest.mark.parametrize("path", ["/config.json", "/../config.json", "/?a=1", "/state/"])
def test_there_is_nothing_else(ask, path):
    assert ask(path)[0] == 404


@pytest.mark.parametrize("host", ["example.com", "example.com:80", "127.0.0.1.example.com", ""])
def test_a_name_of_another_site_is_refused(ask, host):
    assert ask("/", host=host)[0] == ask("/state", host=host)[0] == 403
    assert ask(host=f"localhost:{ask.port}")[0] == 200


def test_a_damaged_run_is_said_and_the_server_goes_on(ask, place):
    whole = (place / "config.json").read_text()
    (place / "config.json").write_text("{")
    status, _, text = ask()
    assert status == 503 and "damaged" in text
    (place / "config.json").write_text(whole)
    assert ask()[0] == 200


@pytest.mark.slow
def test_connections_that_say_nothing_do_not_add_up(ask, monkeypatch, capsys):
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    silent = [socket.create_connection(("127.0.0.1", ask.port)) for _ in range(2 * MOST)]
    assert threading.active_count() <= MOST + 10
    for one in silent:
        assert one.recv(1) == b""  # closed: at once, or after the time-out
        one.close()
    assert ask("/state")[0] == 200 and capsys.readouterr().err == ""


def test_any_fault_of_a_run_is_answered_and_not_printed(place, capsys):
    def faulty():
        raise KeyError("epoch")

    with serve([place], faulty) as (address, _):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 503
        connection.close()
    assert capsys.readouterr().err == ""
