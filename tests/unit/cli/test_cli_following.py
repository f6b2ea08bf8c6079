"""logs, watch and show: what people look at while a run goes on and after it."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import watch
from gangline.cli.main import main
from gangline.cli.summary import main_metric, render_summary
from gangline.cli.terminal import Terminal
from gangline.cli.text import cell_width
from gangline.snapshot.manifest import FileEntry, Manifest


def event(seq: int, message: str, kind: str = "phase") -> dict[str, Any]:
    return {"seq": seq, "time": 0.0, "kind": kind, "message": message, "data": {}}


# --- logs ---


def test_rank_0_by_default(gangline: Any, client: Any, make: Any):
    client.runs, client.logs = {"a": make.run(id="a")}, {0: "zero\x1b[31m\n", 1: "one\n"}
    assert gangline("logs", "a").out == "zero\n"
    assert gangline("logs", "a", "-r", "1").out == "one\n"


def test_several_ranks_are_labelled(gangline: Any, client: Any, make: Any):
    client.runs, client.logs = {"a": make.run(id="a")}, {0: "zero\n", 3: "three\n"}
    assert gangline("logs", "a", "--rank", "3", "--rank", "0").out == "rank 3 | three\nrank 0 | zero\n"
    assert gangline("logs", "a", "--all-ranks").out == "rank 0 | zero\nrank 3 | three\n"


def test_tail_and_attempt_are_passed_on(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    gangline("logs", "a", "--tail", "5", "--attempt", "2")
    query = client.calls[-1][1][1]
    assert (query["tail"], query["attempt"]) == (5, 2)


def test_a_rank_that_does_not_exist(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    result = gangline("logs", "a", "--rank", "4")
    assert result.code == 66
    assert "0 to 3" in result.err


def test_an_empty_log_says_how_the_run_stands(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", phase="queued", message="Waits for 4 ranks.")}
    result = gangline("logs", "a")
    assert (result.code, result.out) == (0, "")
    assert "rank 0 has written nothing; a is queued: Waits for 4 ranks." in result.err


def test_raw_is_byte_for_byte(client: Any, make: Any, monkeypatch: pytest.MonkeyPatch):
    client.runs = {"a": make.run(id="a")}
    client.logs = {0: b"\x00\xff\x1b[31m\r\n".decode("utf-8", "surrogateescape")}
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="utf-8"))
    assert main(["logs", "a", "--raw"]) == 0
    assert buffer.getvalue() == b"\x00\xff\x1b[31m\r\n"


def test_ranks_and_times_as_people_write_them(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    gangline("logs", "a", "-r", "0,2-3", "--since", "10m", "--until", "1700000000")
    query = client.calls[-1][1][1]
    assert query["ranks"] == [0, 2, 3]
    assert time.time() - query["since"] == pytest.approx(600, abs=30)
    assert query["until"] == 1_700_000_000.0
    assert "names no ranks" in gangline("logs", "a", "-r", "3-1").err
    assert "is no time" in gangline("logs", "a", "--since", "yesterday").err


@pytest.mark.parametrize(
    "words",
    [
        ["--search", "x", "--follow"],
        ["--download", "d", "--search", "x"],
        ["--follow", "--until", "1m"],
        ["--search", "x", "-n", "3"],
        ["-i"],
    ],
)
def test_what_does_not_go_together_is_said(gangline: Any, client: Any, make: Any, words: list[str]):
    client.runs = {"a": make.run(id="a")}
    result = gangline("logs", "a", *words)
    assert result.code == 64
    assert client.calls == []


# --- search ---


def hit(rank: int, text: str, **changes: Any) -> dict[str, Any]:
    made = {
        "rank": rank,
        "attempt": 0,
        "offset": 0,
        "text": text,
        "cut": False,
        "time": None,
        "before": [],
        "after": [],
    }
    return {**made, "before": [], "after": [], **changes}


def end_of_search(hits: int, **changes: Any) -> dict[str, Any]:
    return {"hits": hits, "more": False, "timed_out": False, "logs": 4, "bytes": 1_200_000, "seconds": 0.1, **changes}


def test_a_search_is_over_all_ranks_and_attempts(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", attempt=1)}
    client.hits = [hit(0, "loss: \x1b[31mnan"), hit(2, "nan", attempt=1, cut=True), end_of_search(2)]
    result = gangline("logs", "a", "--search", "nan")
    assert result.code == 0
    assert result.out.splitlines()[0] == "attempt 0 rank 0 | loss: nan"
    assert result.out.splitlines()[1].startswith("attempt 1 rank 2 | nan … [the line goes on")
    query = client.calls[-1][1][2]
    assert (query["ranks"], query["attempt"], query["limit"]) == (None, None, 1000)


def test_a_search_that_finds_nothing_exits_with_1(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    client.hits = [end_of_search(0)]
    result = gangline("logs", "a", "--search", "nan", "--rank", "1")
    assert (result.code, result.out) == (1, "")
    assert "no line matches; 1.2 MB in 4 logs were searched" in result.err
    assert client.calls[-1][1][2]["ranks"] == [1]


def test_lines_around_stand_apart(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    client.hits = [hit(0, "b", before=["a"], after=["c"]), hit(0, "e", before=["d"]), end_of_search(2, more=True)]
    result = gangline("logs", "a", "--search", "[be]", "-C", "1", "-r", "0")
    assert result.out == "a\nb\nc\n--\nd\ne\n"
    assert "--limit" in result.err


# --- download ---


def test_all_logs_as_files(gangline: Any, client: Any, make: Any, tmp_path: Path):
    client.runs, client.logs = {"a": make.run(id="a", attempt=1)}, {rank: f"rank {rank}\n" for rank in range(4)}
    folder = tmp_path / "logs"
    assert gangline("logs", "a", "--download", str(folder)).err == f"8 logs, 56 B, in {folder}\n"
    assert (folder / "rank-0003.attempt-1.log").read_text() == "rank 3\n"
    assert not list(folder.glob(".*"))
    again = gangline("logs", "a", "--download", str(folder))
    assert "8 logs were there already" in again.err
    (folder / "rank-0003.attempt-1.log").unlink()
    assert "1 log, 7 B" in gangline("logs", "a", "--download", str(folder)).err
    client.runs["b"] = make.run(id="b")
    other = gangline("logs", "b", "--download", str(folder))
    assert (other.code, "holds the logs of a" in other.err) == (64, True)


def test_a_folder_with_logs_of_somebody_else_is_left_alone(gangline: Any, client: Any, make: Any, tmp_path: Path):
    client.runs, client.logs = {"a": make.run(id="a")}, {0: "new"}
    (tmp_path / "rank-0000.attempt-0.log").write_text("mine")
    result = gangline("logs", "a", "--download", str(tmp_path))
    assert "Name another folder" in result.err
    assert (tmp_path / "rank-0000.attempt-0.log").read_text() == "mine"


def test_following_tells_events_beside_the_output(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", events=[event(4, "old")])}
    stream = [make.chunk("x", complete=False), {"event": event(5, "restart 1\n of 3\x1b")}, make.chunk("y\n")]
    client.stream = [*stream, {"end": make.run(id="a", phase="failed", exit_code=9)}]
    result = gangline("logs", "a", "-f", "--tail", "3")
    assert (result.code, result.out) == (9, "xy\n")
    assert " restart 1 of 3\n" in result.err
    assert client.calls[-1] == ("follow", ("a", {"ranks": [0], "attempt": None, "tail": 3, "since": None, "after": 4}))


def test_following_tells_why_a_run_waits(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", phase="queued")}
    client.stream = [{"waits": "Slurm: Priority, starts at about 12:40."}, {"end": make.run(id="a", phase="succeeded")}]
    result = gangline("logs", "a", "--follow")
    assert (result.code, result.out) == (0, "")
    assert "Slurm: Priority, starts at about 12:40." in result.err


def test_a_reader_that_has_gone_is_no_error(
    client: Any, make: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return descriptor.fileno()

    client.runs, client.logs = {"a": make.run(id="a")}, {0: "x\n"}
    with (tmp_path / "closed").open("w") as descriptor:
        monkeypatch.setattr(sys, "stdout", Gone())
        assert main(["logs", "a"]) == 141
    assert capfd.readouterr().err == ""


# --- watch ---


def test_watching_in_a_pipe_prints_changes(gangline: Any, client: Any, make: Any):
    first = make.run(id="a", events=[event(1, "started")])
    last = make.run(
        id="a", phase="failed", exit_code=2, step=130, events=[event(1, "started"), event(2, "rank 1 died")]
    )
    client.runs, client.later = {"a": first}, [first, last]
    result = gangline("watch", "a")
    assert result.code == 2
    told = [line.partition(" ")[2] for line in result.out.splitlines()]
    assert told == ["started", "step 120/200 60%", told[2], "rank 1 died"]
    assert told[2].startswith("step 130/200 65%")


DIED = "Rank 1 died. No restart: --max-restarts is 0."


def test_why_a_run_failed_is_said_once(gangline: Any, client: Any, make: Any):
    events = [event(5, f"Attempt 0 failed. {DIED}", "attempt_ended"), event(6, DIED)]
    attempt = make.attempt(0, outcome="failed", reason="killed", message="Rank 1 died.")
    ended = make.run(id="a", phase="failed", exit_code=9, message=DIED, events=events, attempts=[attempt])
    client.runs = {"a": ended}
    client.stream = [*({"event": one} for one in events), {"end": ended}]
    assert gangline("logs", "a", "-f").err.count("Rank 1 died") == 1
    assert gangline("watch", "a").out.count("Rank 1 died") == 1
    shown = gangline("show", "a").out
    assert shown.count("Rank 1 died") == 1
    assert DIED in shown
    assert "as said above" in shown


def test_why_a_run_restarts_is_said_once_though_the_next_attempt_comes_between(gangline: Any, client: Any, make: Any):
    died = "Rank 1 died. Restart 1 of 3 (infrastructure)."
    events = [
        event(5, f"Attempt 0 failed. {died}", "attempt_ended"),
        event(6, "Attempt 1 starts from the checkpoint of step 200.", "attempt_started"),
        event(7, died),
    ]
    client.runs = {"a": (ended := make.run(id="a", phase="succeeded", exit_code=0, events=events))}
    client.stream = [*({"event": one} for one in events), {"end": ended}]
    told = gangline("logs", "a", "-f").err
    assert told.count("Rank 1 died") == 1
    assert "Attempt 1 starts" in told


def test_watching_as_json_prints_each_state(gangline: Any, client: Any, make: Any):
    states = [make.run(id="a", step=4), make.run(id="a", step=4), make.run(id="a", step=9)]
    states.append(make.run(id="a", phase="failed", exit_code=3, step=9))
    client.runs, client.later = {"a": states[0]}, states[1:]
    result = gangline("watch", "--json", "a")
    assert result.code == 3
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [(run["phase"], run["step"]) for run in found] == [("running", 4), ("running", 9), ("failed", 9)]


def test_ctrl_c_ends_only_the_watching(gangline: Any, client: Any, make: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    client.runs = {"a": make.run(id="a")}
    monkeypatch.setattr(client, "wait", interrupt)
    result = gangline("watch", "a")
    assert result.code == 130
    assert "the run goes on" in result.err


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_the_live_screen_fits(make: Any, width: int, height: int):
    ranks = [
        make.rank(0),
        make.rank(1, exit_code=0),
        make.rank(2, signal=9),
        make.rank(3, signal=15, ended_by="platform"),
    ]
    attempts = [make.attempt(0, outcome="failed", reason="killed", message="y" * 300), make.attempt(1, ranks=ranks)]
    checkpoints = [make.checkpoint(100, latest=True)]
    run = make.run(message="m" * 300, attempts=attempts, checkpoints=checkpoints, metrics={"loss": 0.5})
    view = watch.View(run=run, metric=make.metric([3.0, 2.0, 1.0]), log=["x" * 300] * 30, rate=2.0)
    lines = watch.render_screen(view, Terminal(width=width, height=height, now=make.now))
    assert max(map(cell_width, lines)) <= width
    assert len([line for line in lines if line.startswith("xxx")]) <= 10


def test_the_live_screen_shows_rate_loss_and_ranks(make: Any):
    ranks = [make.rank(0), make.rank(1, exit_code=0), make.rank(2, signal=9), make.rank(3, exit_code=1)]
    run = make.run(attempts=[make.attempt(ranks=ranks)], metrics={"loss": 1.0})
    view = watch.View(run=run, metric=make.metric([3.0, 2.0, 1.0]), rate=2.0)
    lines = watch.render_screen(view, Terminal(width=100, now=make.now))
    assert lines[2] == "step 120/200 60% · 2 steps/s · 40s left"
    assert lines[3] == "loss █▅▁ 1"
    assert lines[5:7] == ["node 0  0 1:ok", "node 1  2:-9 3:1"]


def test_the_rate_is_of_one_attempt(make: Any):
    rate = watch.Rate()
    assert rate.update(make.run(step=None), 0.0) is None
    assert rate.update(make.run(step=100), 0.0) is None
    assert rate.update(make.run(step=120), 10.0) == 2.0
    assert rate.update(make.run(step=50, attempt=1), 20.0) is None
    assert rate.update(make.run(step=60, attempt=1), 21.0) == 10.0


# --- show ---


def make_failed(make: Any) -> dict[str, Any]:
    attempts = [
        make.attempt(0, outcome="failed", reason="killed", message="restart 1 of 3 (infrastructure)"),
        make.attempt(1, outcome="failed", reason="user_error", first_failure=make.failure(), resume_step=100),
    ]
    return make.run(
        phase="failed",
        reason="user_error",
        exit_code=1,
        ended=make.now - 40,
        message="Rank 2 on node 1 (gpu-7) ended with exit code 1",
        attempts=attempts,
        checkpoints=[make.checkpoint(100, latest=True)],
        code=make.code(),
        metrics={"loss": 0.5},
        tokens_per_s=12_345.6,
        restarts=1,
    )


def test_the_summary_of_a_failed_run(make: Any):
    text = "\n".join(
        render_summary(make_failed(make), Terminal(width=100, now=make.now), metric=make.metric([2.0, 1.0]))
    )
    for expected in (
        "failed (user_error) · exit code 1\nRank 2 on node 1 (gpu-7) ended with exit code 1.\n",
        "progress    step 120/200 60% · 12,346 tokens/s\n",
        "gang        2 nodes x 2 ranks = 4 ranks · no accelerators · pool local · strategy ddp\n",
        "  rank 2 (node 1, host gpu-7, pid 4711): exit code 1, 20s after the start, at step 120 of 200\n",
        "  ValueError: loss is not finite\n",
        "  │ step 120\n",
        "  0  failed (killed) ",
        "restart 1 of 3 (infrastructure)\n",
        "command     train.py --lr 3e-4\n",
        "commit 0123456789ab on main, with 1 changed file and 1 untracked file\n",
        "environment Python 3.11.2 · torch 2.13.0 · numpy 2.1.0\n",
        "folder      /home/ada/.gangline/runs/llama-7k3q\n",
        "  gangline logs llama-7k3q --rank 2 ",
    ):
        assert expected in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_summary_escapes_whatever_training_wrote(make: Any, width: int):
    evil = "\x1b[31m\x07\u202e" + "日本" * 50
    failure = make.failure(error_type=evil, error_message=evil, traceback=evil, log_tail=evil, host=evil)
    run = {**make_failed(make), "name": evil, "message": evil, "metrics": {evil: 1.0}, "user": evil}
    run["attempts"] = [make.attempt(0, outcome="failed", reason="killed", message=evil, first_failure=failure)]
    run["code"] = make.code(branch=evil, excluded=[{"path": evil, "rule": evil, "num_files": None, "size_bytes": None}])
    text = "\n".join(render_summary(run, Terminal(width=width, now=make.now), metric=make.metric([1.0], name=evil)))
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_the_summary_without_unicode_is_ascii(make: Any):
    terminal = Terminal(width=80, unicode=False, now=make.now)
    assert "\n".join(render_summary(make_failed(make), terminal, metric=make.metric([2.0, 1.0]))).isascii()


def test_the_summary_of_a_run_that_waits(make: Any):
    run = make.run(phase="queued", started=None, attempt=None, step=None, total_steps=None, message="Waits for 2 GPUs.")
    text = "\n".join(render_summary(run, Terminal(width=80, now=make.now)))
    assert "queued\nWaits for 2 GPUs.\n" in text
    assert "gangline stop llama-7k3q" in text
    assert "attempts" not in text


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["lr", "loss", "a"], "loss"),
        (["train/loss", "val/loss"], "train/loss"),
        (["heldout_loss", "lr"], "heldout_loss"),
        (["b", "a"], "a"),
        ([], None),
    ],
)
def test_which_curve_is_drawn(names: list[str], chosen: str | None):
    assert main_metric(names) == chosen


def test_show_json_is_everything(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    assert json.loads(gangline("show", "a", "--json").out) == client.runs["a"]


def test_show_events_and_diff(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", events=[event(0, "Attempt 0 starts.")], code=make.code(diff="-\x1b\n"))}
    assert gangline("show", "a", "--events").out.endswith("phase            Attempt 0 starts.\n")
    assert gangline("show", "a", "--diff").out == "-\\x1b\n"


@pytest.mark.parametrize(
    ("commit", "says"), [(None, "in no git repository"), ("0123456789abcdef", "changed since commit 0123456789ab")]
)
def test_show_says_why_there_is_no_diff(gangline: Any, client: Any, make: Any, commit: str | None, says: str):
    client.runs = {"a": make.run(id="a", code=make.code(diff=None, commit=commit))}
    result = gangline("show", "a", "--diff")
    assert (result.code, result.out) == (0, "")
    assert says in result.err


def test_show_code_restores_byte_for_byte(gangline: Any, client: Any, make: Any, tmp_path: Path):
    contents = {"a.bin": b"\x00\xff\r\n", "deep/b.txt": b"text"}
    client.objects = {hashlib.sha256(data).hexdigest(): data for data in contents.values()}
    files = tuple(
        FileEntry(path=path, kind="file", size=len(data), digest=hashlib.sha256(data).hexdigest())
        for path, data in contents.items()
    )
    client.manifest = Manifest(files=files).to_dict()
    client.runs = {"a": make.run(id="a", code=make.code())}
    folder = tmp_path / "restored"
    result = gangline("show", "a", "--code", str(folder))
    assert "packed" not in result.err
    assert result.out == f"Restored 2 files, 8 B of a into {folder}\n"
    assert {path: (folder / path).read_bytes() for path in contents} == contents
    assert [path.name for path in tmp_path.iterdir()] == ["restored"]
    (tmp_path / "gangline.yaml").touch()
    inside = gangline("show", "a", "--code", str(tmp_path / "again"))
    assert f"it lies in the project {tmp_path}, and is packed with the next submit there" in inside.err
    assert gangline("show", "a", "--code", str(folder)).code == 75
    assert gangline("show", "a", "--code", str(folder / "a.bin" / "x")).code in {64, 75}
