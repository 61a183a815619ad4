"""Uploads to the hub, against a local server that answers as the hub's API does."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from export_subjects import export_of, make_trained, write_run
from flatnce import cli
from flatnce.pretrain.exporting import ExportError, load_exported, push_to_hub

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="the hub's client is not installed: it comes with timm"
)


class Hub(BaseHTTPRequestHandler):
    """Creates repositories and takes commits, whose files it keeps in ``server.files``."""

    def do_POST(self):
        server = self.server
        server.tokens.add(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = self.path.removeprefix("/api/")
        if server.refuses:
            self._answer({"error": "no such token"}, 401)
        elif place == "repos/create":
            asked = json.loads(body)
            server.created.append(asked)
            name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
            address = f"http://127.0.0.1:{server.server_port}/{name}"
            self._answer({"url": address, "name": name, "id": "1"})
        elif place == "validate-yaml":
            server.cards.append(json.loads(body)["content"])
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in place:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self._answer({"files": modes})
        elif "/commit/" in place:
            lines = [json.loads(line) for line in body.splitlines() if line]
            server.summaries += [x["value"]["summary"] for x in lines if x["key"] == "header"]
            for file in (line["value"] for line in lines if line["key"] == "file"):
                server.files[file["path"]] = base64.b64decode(file["content"])
            address = f"http://127.0.0.1:{server.server_port}/someone/net/commit/abc"
            self._answer({"success": True, "commitOid": "abc", "commitUrl": address})
        else:
            self._answer({"error": f"no {place}"}, 404)

    def do_GET(self):
        if re.fullmatch(r"/api/models/[^/]+/[^/]+(/revision/.*)?", self.path.partition("?")[0]):
            self._answer({"id": "someone/net", "sha": "abc", "siblings": [], "private": False})
        else:
            self._answer({"error": f"no {self.path}"}, 404)

    def _answer(self, content, code=200):
        text = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A hub of its own for the test, with a token in the usual place."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    found.files, found.created, found.cards, found.summaries = {}, [], [], []
    found.tokens, found.refuses = set(), False
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{found.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export_of(make_trained(), "torch", tmp_path_factory.mktemp("exports") / "net")


def test_the_files_of_an_export_arrive_and_load(server, folder, tmp_path):
    assert push_to_hub(folder, "someone/net") == f"{server_address(server)}/someone/net"
    assert server.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert server.cards == [(folder / "README.md").read_text(encoding="utf-8")]
    assert server.tokens == {"Bearer hf_" + "x" * 30}
    assert not is_private(server.created[0])
    assert server.summaries[0].startswith("Upload step 30 as torch (flatnce ")
    for name, content in server.files.items():
        (tmp_path / name).write_bytes(content)
    assert load_exported(tmp_path)


def server_address(server):
    return f"http://127.0.0.1:{server.server_port}"


def is_private(asked):
    """Whether a request of the client, of either generation, asks for a private repository."""
    return asked.get("private") is True or asked.get("visibility") == "private"


def test_the_command_exports_and_pushes(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first")
    typed = "export first --to torch --push-to-hub net --private".split()
    assert cli.main(typed) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"on the hub: {server_address(server)}/someone/net"
    assert server.created[0]["name"] == "net" and is_private(server.created[0])
    assert set(server.files) == {"README.md", "config.json", "model.safetensors"}
    assert cli.main([*typed, "--replace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hub"].endswith("/someone/net")


def test_a_refused_upload_keeps_the_export_and_says_how_to_go_on(server, folder):
    server.refuses = True
    with pytest.raises(ExportError, match=r"is written but not on the hub .*hf upload someone/"):
        push_to_hub(folder, "someone/net")
    assert (folder / "model.safetensors").is_file()


def test_no_hub_at_all_is_said_the_same_way(folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ExportError, match="is written but not on the hub"):
        push_to_hub(folder, "someone/net")


@pytest.mark.parametrize("name", ["a/b/c", "-x", "with space", ""])
def test_a_name_that_no_repository_has_is_refused_before_the_export(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "runs" / "first")
    assert cli.main(["export", "first", "--to", "torch", f"--push-to-hub={name}"]) == 2
    assert not (run / "exports").exists()


def test_private_without_a_repository_is_refused(tmp_path, capsys):
    assert cli.main(["export", "first", "--to", "torch", "--private"]) == 2
    assert "--private is for --push-to-hub" in capsys.readouterr().err
