"""``flatnce report`` as a user meets it."""

import json
import signal
import urllib.request

import pytest

import made_runs
from flatnce.cli import main
from flatnce.pretrain.runs.log import RunLog
from forked import Forked, wait_for_lines

QUICK = ["--images", "40", "--device", "cpu"]


def test_a_run_gets_its_page_with_its_encoder_looked_at(first, capsys):
    assert main(["report", "first", *QUICK]) == 0
    assert capsys.readouterr().out.strip() == "the page: runs/first/report.html"
    html = (first / "report.html").read_text(encoding="utf-8")
    assert "measured on 40 test samples of digits" in html and len(html) < 1_000_000
    made = (first / "portrait.json").stat().st_mtime_ns
    assert main(["report", "first", *QUICK]) == 0
    assert (first / "portrait.json").stat().st_mtime_ns == made, "looked at twice"


@pytest.mark.parametrize(
    "as_json",
    [pytest.param(False, id="words"), pytest.param(True, id="json", marks=pytest.mark.slow)],
)
def test_page_and_figures_are_written_on_request(tmp_path, capsys, as_json):
    place = made_runs.write_run(tmp_path / "runs" / "first")
    typed = ["--no-portrait", "--out", "mine.html", "--figures", "figures"]
    assert main(["report", "first", *typed, *(["--json"] if as_json else [])]) == 0
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"loss.svg", "mi.svg", "ess.svg", "knn.svg"} <= names
    assert (tmp_path / "mine.html").is_file() and not (place / "portrait.json").exists()
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["page"] == "mine.html"
        assert len(json.loads(said)["figures"]) == len(names)
    else:
        assert said == f"the page: mine.html\n{len(names)} figures in figures\n"


def test_a_run_whose_checkpoints_are_gone_gets_a_page_and_a_reason(tmp_path, capsys):
    made_runs.write_run(tmp_path / "runs" / "old")
    assert main(["report", "old"]) == 0
    said = capsys.readouterr().out
    assert "the encoder was not inspected:" in said and "checkpoint" in said
    assert (tmp_path / "runs" / "old" / "report.html").is_file()


def test_what_a_report_of_several_runs_refuses(tmp_path, capsys):
    names = [run.name for run in made_runs.write_pairs(tmp_path / "runs", [0.02])]
    (tmp_path / "mine.html").write_text("")
    assert main(["report", *names, "--out", "mine.html"]) == 2
    remedy = "name another, or replace it (`flatnce compare ... --replace`)"
    refused = f"flatnce report: --out mine.html already exists; {remedy}\n"
    assert capsys.readouterr().err == refused
    assert main(["report", *names, "--step", "3"]) == 2
    refused = "flatnce report: --step 3 is for one run; leave it out to compare runs\n"
    assert capsys.readouterr().err == refused


def test_a_run_of_another_command_is_refused(tmp_path, capsys):
    RunLog(tmp_path / "demo", kind="demo", config={})
    assert main(["report", "demo", "--no-portrait"]) == 2
    assert "demo holds a demo run; name one of `flatnce train`" in capsys.readouterr().err


def test_watch_serves_the_page_until_it_is_stopped(tmp_path):
    made_runs.write_run(tmp_path / "runs" / "going", finished=False)
    process = Forked("report", "going", "--watch", "--no-portrait", "--json")
    try:
        wait_for_lines(process.said, 2)
        address = json.loads(process.said.read_text().splitlines()[1])["address"]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "Epoch 4.00 of 4, step 400; stopped" in answer.read().decode()
        process.send_signal(signal.SIGINT)
    except BaseException:
        process.kill()
        raise
    done = process.wait(timeout=60)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2


def test_watch_says_its_address_and_answers_before_the_encoder_is_looked_at(
    first, capsys, monkeypatch
):
    seen = []

    def slow(*arguments, **options):
        address = capsys.readouterr().out.splitlines()[-1].split()[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            seen.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr("flatnce.pretrain.page.inspection.inspect_encoder", slow)
    assert main(["report", "first", "--watch"]) == 130
    assert "Training run first" in seen[0] and "interrupted" in capsys.readouterr().err
