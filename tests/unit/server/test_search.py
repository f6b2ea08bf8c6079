"""Searching logs: what grep finds, wherever it is, in bounded pieces."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.agent.loglimit import LogLimit
from gangline.domain.errors import InvalidRequest
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.rundir.logindex import IndexWriter
from gangline.server import search as searching
from gangline.server.search import LogSearch, SearchQuery
from gangline.testing.commands import make_summary

OWN = [sys.executable, "-I", str(Path(searching.__file__).with_name("scan.py"))]


@pytest.fixture(params=["found", "own"])
def program(request, monkeypatch):
    """ripgrep where it is installed, and what stands in for it."""
    if request.param == "own":
        monkeypatch.setattr(searching, "find_program", lambda: OWN)
    return request.param


def write(attempt: AttemptDir, rank: int, data: bytes) -> None:
    attempt.path.mkdir(parents=True, exist_ok=True)
    with attempt.log(rank).open("ab") as file:
        file.write(data)


def search(logs, pattern: str, **options):
    found = LogSearch(logs, SearchQuery(pattern=pattern, **options))
    found.check()
    items = [item for batch in found.batches() for item in batch]
    return items[:-1], items[-1]


@pytest.fixture
def attempt(tmp_path) -> AttemptDir:
    return RunDir(tmp_path / "run").attempt(0)


@pytest.mark.usefixtures("program")
def test_hits_of_all_logs_in_order(tmp_path):
    run = RunDir(tmp_path)
    for number in (0, 1):
        for rank in (0, 1, 2):
            write(run.attempt(number), rank, b"fine\nloss: nan in rank %d\nfine\n" % rank * (rank != 1))
    logs = [(run.attempt(number), rank) for number in (0, 1) for rank in (0, 1, 2)]
    hits, end = search(logs, r"LOSS:\s+nan", ignore_case=True)
    assert [(hit["attempt"], hit["rank"]) for hit in hits] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert hits[1]["text"] == "loss: nan in rank 2"
    assert hits[1]["offset"] == 5
    assert (end["hits"], end["more"], end["logs"]) == (4, False, 6)
    assert search(logs, r"loss: NAN")[0] == []
    assert search(logs, r"s: n", fixed=True)[1]["hits"] == 4


def test_lines_around_are_told_once(attempt):
    write(attempt, 0, b"".join(b"%d\n" % number for number in range(20)))
    hits, _ = search([(attempt, 0)], "^(5|7|15)$", context=2)
    assert [(hit["before"], hit["text"], hit["after"]) for hit in hits] == [
        (["3", "4"], "5", ["6"]),
        ([], "7", ["8", "9"]),
        (["13", "14"], "15", ["16", "17"]),
    ]


def test_of_a_bar_that_is_drawn_over_the_state_that_matches(attempt):
    write(attempt, 0, b"".join(b"\r%3d%%|###" % number for number in range(101)) + b"\nend\n")
    (hit,), _ = search([(attempt, 0)], " 42%")
    assert hit["text"] == " 42%|###"


def test_a_line_of_ten_megabytes_is_cut_around_the_match(attempt):
    write(attempt, 0, b"x" * 5_000_000 + b"needle" + b"y" * 5_000_000 + b"\nneedle\n")
    hits, _ = search([(attempt, 0)], "needle", context=1)
    assert [(len(hit["text"]) <= 4000, "needle" in hit["text"], hit["cut"]) for hit in hits] == [
        (True, True, True),
        (True, True, False),
    ]


@pytest.mark.usefixtures("program")
def test_what_was_dropped_is_not_searched_and_offsets_are_those_of_the_log(attempt):
    lines = b"".join(b"line %05d\n" % number for number in range(3000))
    write(attempt, 0, lines)
    assert LogLimit(attempt.log(0), 8000).apply(len(lines))
    hits, end = search([(attempt, 0)], r"000\d\d|299\d", context=1)
    found = [int(hit["text"][5:]) for hit in hits]
    assert found == [*range(100), *range(2990, 3000)]
    assert all(lines[hit["offset"] :].startswith(hit["text"].encode()) for hit in hits)
    assert end["bytes"] < 8000
    assert search([(attempt, 0)], r"\x00")[0] == []
    assert search([(attempt, 0)], "line 01500")[0] == []


def test_between_two_times(attempt):
    write(attempt, 0, b"hit 1\nhit 2\nhit 3\n")
    index = IndexWriter(attempt.index(0), interval_s=0.0)
    for moment, size in ((10.0, 6), (11.0, 12), (12.0, 18)):
        index.note(size, moment)
    hits, _ = search([(attempt, 0)], "hit", since=10.5, until=11.2)
    assert [(hit["text"], hit["time"]) for hit in hits] == [("hit 2", 11.0), ("hit 3", 12.0)]
    assert search([(attempt, 0)], "hit", since=12.0)[0] == []


def test_no_more_than_was_asked_for(attempt):
    write(attempt, 0, b"hit\n" * 500)
    write(attempt, 1, b"hit\n" * 500)
    hits, end = search([(attempt, 0), (attempt, 1)], "hit", limit=600)
    assert (len(hits), end["more"]) == (600, True)
    hits, end = search([(attempt, 0), (attempt, 1)], "hit", limit=1000)
    assert (len(hits), end["more"]) == (1000, False)


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("pattern", ["(", "[a", "*a", r"(?P<x"])
def test_what_is_no_expression_is_said(attempt, pattern):
    write(attempt, 0, b"a\n")
    with pytest.raises(InvalidRequest) as caught:
        search([(attempt, 0)], pattern)
    assert caught.value.why


def test_an_expression_that_takes_for_ever_is_ended(attempt, monkeypatch):
    monkeypatch.setattr(searching, "find_program", lambda: OWN)
    write(attempt, 0, b"a" * 60 + b"!\n")
    began = time.monotonic()
    hits, end = search([(attempt, 0)], "(a+)+$", timeout_s=2.0)
    assert (hits, end["timed_out"]) == ([], True)
    assert time.monotonic() - began < 30


LINES = st.lists(
    st.text(st.sampled_from("ab01 .é"), max_size=6).map(str.encode) | st.binary(max_size=6), max_size=30
).map(lambda lines: b"\n".join(line.replace(b"\0", b"").replace(b"\r", b"") for line in lines))
PATTERNS = st.sampled_from(["a", "b+", "a.b", "^a", "b$", "(a|01)", "[ab]0", "^$", "é", "a{2,}", "."])


@pytest.mark.ripgrep
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=LINES, pattern=PATTERNS)
def test_it_finds_the_lines_that_grep_finds(data: bytes, pattern: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        attempt = RunDir(Path(folder)).attempt(0)
        write(attempt, 0, data)
        said = subprocess.run(
            ["grep", "-a", "-b", "-E", pattern, attempt.log(0)],
            capture_output=True,
            env={"LC_ALL": "C.UTF-8"},
            check=False,
        ).stdout
        expected = [int(line.partition(b":")[0]) for line in said.splitlines()]
        hits, _ = search([(attempt, 0)], pattern)
        assert [hit["offset"] for hit in hits] == expected


def test_over_the_wire(api):
    api.commands.runs["a"] = make_summary(id="a", phase="failed")
    api.write_log("a", 0, b"one\ntwo\n", attempt=0)
    api.write_log("a", 1, b"two\n", attempt=1)
    *hits, end = api.client.search("a", "t[w]o", context=1)
    assert [(hit["attempt"], hit["rank"], hit["before"]) for hit in hits] == [(0, 0, ["one"]), (1, 1, [])]
    assert (end["hits"], end["logs"]) == (2, 4)
    assert [hit["rank"] for hit in api.client.search("a", "two", ranks=[1], attempt=1) if "rank" in hit] == [1]
    with pytest.raises(InvalidRequest, match="cannot be searched for"):
        list(api.client.search("a", "(?<=x)y"))


def test_a_hit_costs_one_short_read(attempt, monkeypatch):
    write(attempt, 0, b"".join(b"step %d loss nan\n" % number for number in range(300)))
    read, opened = [], []
    pread, opens = os.pread, os.open
    monkeypatch.setattr(os, "pread", lambda *args: read.append(args[1]) or pread(*args))
    monkeypatch.setattr(os, "open", lambda *args: opened.append(args[0]) or opens(*args))
    hits, _ = search([(attempt, 0)], "nan")
    assert len(hits) == 300
    assert len(read) == 300
    assert max(read) <= 4096
    assert opened.count(attempt.log(0)) == 1
