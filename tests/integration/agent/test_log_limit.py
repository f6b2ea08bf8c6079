"""Case Z1: a rank that prints without end neither fills the disk nor loses its last words."""

import os
import re
import signal

import pytest

from gangline.rundir.dropped import read_dropped
from gangline.rundir.tail import find_tail, read_kept
from gangline.testing.link import pull_run

pytestmark = pytest.mark.integration

LIMIT_BYTES = 5_000_000
_PRINTS = """
import os
line = "x" * 90
print("first words")
for number in range(600):
    os.write(1, "".join(f"{number:04d}{part:04d} {line}\\n" for part in range(1000)).encode())
print("last words", flush=True)
"""
"""60 MB, in pieces of 100 KB."""
_PRINTS_ON = """
import itertools, os
for number in itertools.count():
    os.write(1, b"%08d " % number + b"x" * 90 + b"\\n")
"""
_LINE = re.compile(rb"\d{8} x{90}")


def blocks_bytes(path):
    return path.stat().st_blocks * 512


def test_a_rank_that_prints_60_mb_keeps_5(gang, tmp_path):
    gang.script(_PRINTS)
    result = gang.run_to_end(procs_per_node=2, logs={"max_per_rank_bytes": LIMIT_BYTES})
    assert result["outcome"] == "succeeded", gang.agent_logs()
    for rank in (0, 1):
        log = gang.attempt().log(rank)
        assert log.stat().st_size > 60_000_000
        assert blocks_bytes(log) <= 1.2 * LIMIT_BYTES  # with what the file system itself takes
        kept = b"".join(read_kept(log))
        assert len(kept) <= LIMIT_BYTES + 200
        assert kept.startswith(b"first words\n")
        assert kept.endswith(b"last words\n")
        head, note, tail = re.split(rb"(?m)^(\xe2\x80\xa6 [^\n]* of output were dropped here .*)\n", kept)
        assert b"limit 5.0 MB per rank: --log-limit" in note
        lines = [*head.splitlines()[1:], *tail.splitlines()[:-1]]
        assert all(_LINE.fullmatch(line) for line in lines), "only whole lines that the rank has written"
        assert lines == sorted(lines)
        assert log.read_bytes()[find_tail(log, 1) :] == b"last words\n"
    told = [event["text"] for event in gang.events("warning") if "--log-limit" in event["text"]]
    assert len(told) == 1
    assert re.fullmatch(r"The log of rank [01] is over 5\.0 MB: its middle is dropped \(--log-limit\)\.", told[0])
    problems = pull_run(gang.run.path, tmp_path / "copy")
    copy = tmp_path / "copy" / "attempts" / "0" / "rank-00000.log"
    assert problems == {}
    assert blocks_bytes(copy) <= 1.2 * LIMIT_BYTES  # with what the file system itself takes
    assert b"".join(read_kept(copy)) == b"".join(read_kept(gang.attempt().log(0)))


def test_an_agent_killed_while_it_drops_leaves_a_log_that_can_be_read(gang):
    gang.script(_PRINTS_ON)
    gang.start(procs_per_node=1, logs={"max_per_rank_bytes": 1_000_000})
    log = gang.attempt().log(0)
    gang.until(lambda: read_dropped(log).end > 3_000_000)
    os.kill(gang.agents[0].pid, signal.SIGKILL)
    gang.until(lambda: not gang.left_behind())
    kept = b"".join(read_kept(log))
    assert b"\0" not in kept
    numbers = [int(line[:8]) for line in kept.splitlines() if _LINE.fullmatch(line)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert kept.splitlines()[-2].endswith(b" " + b"x" * 90)
