"""What a notebook shows of results: all of it escaped, in the notebook's own colours."""

import re
from html.parser import HTMLParser

import pytest
import torch

from flatnce import FlatNCE, Monitor, doctor, mi
from flatnce.core.diagnostics import Verdict
from flatnce.diagnose import Diagnosis
from flatnce.messages import html_card
from flatnce.pretrain.training.loop import Outcome
from made_runs import STEPS, write_run


class Text(HTMLParser):
    """The text of a fragment; every element must be closed in order."""

    def __init__(self, fragment):
        super().__init__()
        self.open, self.words = [], []
        self.feed(fragment)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def shown(result):
    """The texts of a result's HTML, which has no colour, script or address."""
    fragment = result._repr_html_()
    assert not re.search(r"#[0-9a-f]{3}|rgb|background|<script|href|src=", fragment)
    return Text(fragment).words


def test_text_is_escaped_and_an_empty_list_is_left_out():
    card = html_card("<b>", {"a & b": "<script>"}, ["x < y"])
    assert "<b>" not in card and "<script>" not in card
    assert Text(card).words == ["<b>", "a & b", "<script>", "x < y"]
    assert "<ul>" not in html_card("t", {})


def test_a_verdict_shows_evidence_and_remedies():
    loss_fn, monitor = FlatNCE(0.1), Monitor()
    z = torch.eye(16)
    loss_fn(z, z)
    monitor.update(loss_fn.last)
    monitor.compute(step=1)
    verdict = monitor.verdict()
    assert isinstance(verdict, Verdict) and verdict.remedies
    title = f"{verdict.kind} since step 1"
    assert shown(verdict) == [title, "evidence", verdict.evidence, *verdict.remedies]


def test_a_diagnosis_shows_its_findings():
    z = torch.randn(64, 8)
    diagnosis = doctor(z, z)  # the two views are the same
    assert diagnosis.findings
    words = shown(diagnosis)
    assert words[0] == f"{diagnosis.subject}: {diagnosis.verdict}"
    for finding in diagnosis.findings:
        assert {finding.kind, finding.evidence, *finding.remedies} <= set(words)


def test_a_diagnosis_shows_what_is_not_known():
    diagnosis = Diagnosis("run first", unknown=("no temperature", "no <labels>"), judged=False)
    assert "not known:" in str(diagnosis)
    assert shown(diagnosis)[-2:] == ["not known: no temperature", "not known: no <labels>"]
    assert "not known" not in "".join(shown(Diagnosis("run first")))


@pytest.mark.parametrize("method", ["auto", "ksg"])
def test_an_estimate_shows_its_sentence_meaning_and_flags(method):
    x = torch.randn(200, 2)
    options = {"steps": 20, "permutations": 99} if method == "auto" else {"method": method}
    found = mi.estimate(x, x + torch.randn(200, 2), **options)
    words = shown(found)
    assert words[0] == found.sentence() and words.count("200 of 200") == 1
    assert "Meaning" in words and not set(found.readouts) & set(words)
    assert [f"{flag.name}: {flag.message}" for flag in found.flags] == words[-len(found.flags) :]


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_shows_how_it_ended_and_its_evaluations(finished, tmp_path):
    folder = write_run(tmp_path / "run", finished=finished)
    words = shown(Outcome(folder, finished, STEPS))
    ended = "finished" if finished else "stopped"
    assert words[0] == f"run run: {ended} at step {STEPS}" and words[-1] == str(folder)
    assert ("linear on digits" in words) is ("healthy since step 20: fine" in words) is finished
