"""Real gangs of plain Python ranks: started, seen to end, ended, restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gangline.rundir.logindex import IndexReader

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_gang_runs_and_succeeds(gang: Gang, nodes: int) -> None:
    gang.script("""
        import os
        print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], flush=True)
    """)
    result = gang.run_to_end(nodes=nodes)
    assert result["outcome"] == "succeeded"
    assert result["exit_code"] == 0
    assert [one["exit_code"] for one in result["ranks"]] == [0] * (2 * nodes)
    for rank in range(2 * nodes):
        assert gang.log(rank) == f"rank {rank} of {2 * nodes} 127.0.0.1\n"
    assert set(gang.wait().values()) == {0}
    assert gang.left_behind() == []


def test_any_failing_rank_ends_the_gang(gang: Gang) -> None:  # F1
    gang.script("""
        import os, sys, time
        if os.environ["RANK"] == "3":
            raise ValueError("no such data")
        time.sleep(600)
    """)
    result = gang.run_to_end(nodes=2)
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("failed", "user_error", 1)
    failure = result["first_failure"]
    assert (failure["rank"], failure["node"], failure["exit_code"]) == (3, 1, 1)
    assert failure["error_type"] == "ValueError"
    assert "ValueError: no such data" in failure["log_tail"]
    others = [one for one in result["ranks"] if one["rank"] != 3]
    assert {(one["signal"], one["ended_by"]) for one in others} == {(15, "platform")}
    assert result["next"] == "end"


def test_a_rank_that_ends_early_and_well_is_no_failure(gang: Gang) -> None:
    gang.script("""
        import os, time
        time.sleep(0.3 * int(os.environ["RANK"]))
    """)
    result = gang.run_to_end(procs_per_node=3)
    assert result["outcome"] == "succeeded"


def test_a_killed_rank_restarts_the_gang_on_the_infrastructure_budget(gang: Gang) -> None:
    gang.script("""
        import os, time
        print("attempt", os.environ["GANGLINE_ATTEMPT"], flush=True)
        if os.environ["GANGLINE_ATTEMPT"] == "0":
            time.sleep(600)
    """)
    gang.start(nodes=2, restarts={"max_infrastructure_restarts": 1})
    pids = gang.until_running()
    for rank in range(4):
        gang.until_said("attempt 0", rank=rank)
    os.kill(pids[2], signal.SIGKILL)
    gang.wait()
    first, second = gang.result(0), gang.result(1)
    assert (first["reason"], first["next"], first["budget"]) == ("killed", "restart", "infrastructure")
    assert first["exit_code"] == 137
    assert first["first_failure"]["rank"] == 2
    assert first["first_failure"]["signal_name"] == "SIGKILL"
    assert "137" in first["message"]
    assert "who sent it is not known" in first["message"]
    assert second["outcome"] == "succeeded"
    assert gang.log(0, 0) == "attempt 0\n"  # G4
    assert gang.log(0, 1) == "attempt 1\n"


def test_attempts_are_limited_and_pauses_grow(gang: Gang) -> None:  # F5
    gang.script("raise SystemExit(1)")
    gang.run_to_end(restarts={"max_restarts": 2, "backoff_s": 0.3, "max_backoff_s": 5.0})
    results = [gang.result(number) for number in range(3)]
    assert [one["next"] for one in results] == ["restart", "restart", "end"]
    assert [one["next_delay_s"] for one in results][:2] == [0.0, 0.3]
    assert results[2]["started"] - results[1]["ended"] >= 0.3
    assert len(gang.run.attempts()) == 3
    assert results[2]["exit_code"] == 1


def test_a_pipe_does_not_hide_a_failure(gang: Gang) -> None:  # F4
    gang.script("raise SystemExit(3)")
    result = gang.run_to_end(entry_kind="command", entry=f"{sys.executable} train.py | tee side.log", procs_per_node=1)
    assert (result["outcome"], result["exit_code"]) == ("failed", 3)


def test_a_missing_program_is_explained(gang: Gang) -> None:
    result = gang.run_to_end(entry_kind="command", entry="no-such-program", args=["--lr", "1"], procs_per_node=1)
    assert (result["reason"], result["exit_code"]) == ("user_error", 127)
    assert "no-such-program" in gang.log()


def test_a_script_with_its_own_interpreter_line_runs(gang: Gang) -> None:
    gang.script('#!/bin/sh\nprintf "%s|" "$@"', name="go.sh").chmod(0o755)
    result = gang.run_to_end(entry_kind="command", entry="./go.sh", args=["a b", "$HOME", "'q'"], procs_per_node=1)
    assert result["outcome"] == "succeeded"
    assert gang.log() == "a b|$HOME|'q'|"


def test_values_arrive_byte_for_byte(gang: Gang) -> None:
    gang.script("""
        import os, sys
        print(repr(os.environ["ODD"]), sys.argv[1:])
    """)
    odd = "a=b\n'\"$HOME `x` \\ ü"
    gang.run_to_end(env={"ODD": odd}, args=["--x=1", "", "two words", "*"], procs_per_node=1)
    assert gang.log() == f"{odd!r} {['--x=1', '', 'two words', '*']}\n"


def test_a_notebook_runs_as_a_script(gang: Gang) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# no code"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "x = 20\n", "!ls\n"]},
        {"cell_type": "code", "source": "print(x + 1)"},
    ]
    (gang.run.code / "train.ipynb").write_text(json.dumps({"cells": cells}))
    result = gang.run_to_end(entry_kind="notebook", entry="train.ipynb", procs_per_node=1)
    assert result["outcome"] == "succeeded"
    assert gang.log() == "21\n"


def test_a_module_runs(gang: Gang) -> None:
    gang.script("import sys; print(sys.argv[1], __name__)", name="tool.py")
    gang.run_to_end(entry_kind="module", entry="tool", args=["x"], procs_per_node=1)
    assert gang.log() == "x __main__\n"


@pytest.mark.parametrize("start", ["exec", "warm"])
def test_stdin_is_empty_whatever_the_agent_has(gang: Gang, start: str) -> None:  # E4
    gang.script("import sys; print(repr(sys.stdin.read())); input('choose: ')")
    gang.write_launch(procs_per_node=1, start=start)
    read, write = os.pipe()  # nobody ever writes or closes
    os.write(write, b"1\n")
    try:
        gang.start_agent(0, stdin=read)
        gang.wait()
    finally:
        os.close(read)
        os.close(write)
    assert gang.result()["first_failure"]["error_type"] == "EOFError"
    assert gang.result()["start_mode"] == start
    assert gang.log().startswith("''\n")


def test_output_is_unbuffered_and_survives_a_kill(gang: Gang) -> None:  # G3
    gang.script("""
        import os, signal, sys
        for number in range(5):
            print("line", number)
        sys.stderr.write("to stderr\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    result = gang.run_to_end(procs_per_node=1)
    assert gang.log() == "".join(f"line {number}\n" for number in range(5)) + "to stderr\n"
    assert result["ranks"][0]["peak_rss_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("import sys; [sys.stdout.write('x' * 1000) for _ in range(10_000)]", 10_000_000),
        ("import os, sys; os.close(1); os.close(2)", 0),
        ("pass", 0),
        ("import os; os.write(1, bytes(range(128, 256)))", 128),
    ],
    ids=["10 MB without a line end", "closes stdout", "exits at once", "not UTF-8"],
)
def test_odd_output(gang: Gang, text: str, size: int) -> None:
    gang.script(text)
    result = gang.run_to_end(procs_per_node=1)
    assert result["outcome"] == "succeeded"
    assert gang.attempt().log(0).stat().st_size == size


def test_a_script_that_is_not_utf8_fails_with_its_own_error(gang: Gang) -> None:
    (gang.run.code / "train.py").write_bytes(b"x = '\xe9'\n")
    result = gang.run_to_end(procs_per_node=1)
    assert (result["reason"], result["exit_code"]) == ("user_error", 1)
    assert "SyntaxError" in gang.log()


def test_daemons_of_ranks_do_not_outlive_the_attempt(gang: Gang) -> None:
    gang.script("""
        import os, signal, subprocess, sys, time
        sleeper = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        daemon = subprocess.Popen(["setsid", sys.executable, "-c", sleeper], stdout=subprocess.PIPE, env={})
        daemon.stdout.readline()
    """)
    result = gang.run_to_end(stop={"failure_grace_s": 0.2}, procs_per_node=2)
    assert result["outcome"] == "succeeded"
    pids = [pid for event in gang.events("killed") for pid in event["pids"]]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_memory_errors_are_told_apart(gang: Gang) -> None:  # F3
    gang.script("""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
        b"x" * (1 << 30)
    """)
    result = gang.run_to_end(procs_per_node=1)
    assert (result["reason"], result["first_failure"]["error_type"]) == ("out_of_memory", "MemoryError")


def test_exit_137_of_a_wrapper_counts_as_killed(gang: Gang) -> None:
    result = gang.run_to_end(entry_kind="command", entry="sh -c 'kill -9 $$'; exit $?", procs_per_node=1)
    assert (result["reason"], result["exit_code"]) == ("killed", 137)


def test_declared_outputs_must_be_there(gang: Gang) -> None:  # D2
    gang.script("""
        open("model.bin", "w").close()
        open("log.txt", "w").write("x")
    """)
    result = gang.run_to_end(outputs=["model.bin", "log.txt", "report/"], procs_per_node=1)
    assert (result["outcome"], result["reason"]) == ("failed", "storage")
    assert "model.bin is empty" in result["message"]
    assert "report/ is missing" in result["message"]
    assert "log.txt" not in result["message"]


def test_a_checkpoint_folder_that_cannot_be_written_fails_at_once(gang: Gang) -> None:  # D1
    gang.script("print('never')")
    (gang.run.path / "file").write_text("in the way")
    result = gang.run_to_end(checkpoint={"path": str(gang.run.path / "file" / "checkpoints")})
    assert (result["outcome"], result["reason"]) == ("failed", "storage")
    assert "checkpoints" in result["message"]
    assert gang.log() == ""


def test_a_required_checkpoint_that_is_missing_fails(gang: Gang) -> None:  # C5
    gang.script("print('never')")
    result = gang.run_to_end(checkpoint={"path": str(gang.run.path / "none"), "resume": "required"})
    assert result["reason"] == "storage"
    assert gang.log() == ""


@pytest.mark.parametrize("made", [["checkpoints-of-mine"], []])
def test_a_first_attempt_says_that_it_starts_fresh(gang: Gang, made: list[str]) -> None:  # C5
    gang.script("import gangline; print(gangline.latest_checkpoint())")
    folder = gang.run.path / "checkpoints-of-mine"
    for name in made:
        (gang.run.path / name).mkdir()
    result = gang.run_to_end(procs_per_node=1, checkpoint={"path": str(folder), "resume": "auto", "keep_last": 1})
    assert result["outcome"] == "succeeded"
    assert gang.log() == "None\n"
    (started,) = gang.events("attempt_started")
    assert (started["resume"], started["fresh"]) == (None, "no checkpoint yet")


def test_a_required_checkpoint_is_required_at_every_attempt(gang: Gang) -> None:  # C5
    gang.script("print('never')")
    required = {"path": str(gang.run.path / "none"), "resume": "required"}
    gang.run_to_end(checkpoint=required, restarts={"max_restarts": 1, "backoff_s": 0.0, "max_backoff_s": 1.0})
    assert [gang.result(number)["reason"] for number in range(2)] == ["storage", "storage"]


def test_the_newest_complete_checkpoint_is_given_to_all_ranks(gang: Gang) -> None:  # C1
    for step, manifest in ((10, True), (20, False)):
        folder = gang.run.checkpoints / f"step-{step:010d}.attempt-000"
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(b"1234")
        if manifest:
            files = {"model.pt": {"size": 4, "crc32": None}}
            keys = {"version": 1, "step": step, "attempt": 0, "world_size": 2, "run_id": "x", "time": 1.0}
            (folder / "manifest.json").write_text(json.dumps({**keys, "files": files}))
    gang.script("import os; print(os.environ['GANGLINE_RESUME'])")
    result = gang.run_to_end(nodes=2)
    expected = str(gang.run.checkpoints / "step-0000000010.attempt-000")
    assert (result["resume"], result["resume_step"]) == (expected, 10)
    assert {gang.log(rank) for rank in range(4)} == {f"{expected}\n"}
    assert any("step-0000000020" in event["text"] for event in gang.events("warning"))


def test_the_same_agent_twice_is_harmless(gang: Gang) -> None:
    gang.script("import time; print('up'); time.sleep(3)")
    gang.start()
    gang.until_said("up")
    first = gang.agents[0]
    assert gang.start_agent(0).wait(60) == 0
    assert first.wait(60) == 0
    assert gang.log() == "up\n"


def test_environment_and_index_are_recorded(gang: Gang) -> None:
    gang.script("import time; print('one'); time.sleep(0.5); print('two')")
    gang.run_to_end()
    environment = json.loads(gang.attempt().environment(0).read_text())
    assert environment["python"]["executable"] == sys.executable
    assert environment["python"]["packages"]["pytest"]
    assert IndexReader(gang.attempt().index(0)).last()[1] == len("one\ntwo\n")


def test_a_wrong_call_is_refused(gang: Gang) -> None:
    call = [sys.executable, str(gang.bundle), "agent", "somewhere"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "--launch" in done.stderr


def test_an_agent_that_is_started_again_after_the_end_of_its_launch_does_nothing(gang: Gang) -> None:
    """A server that was killed before it could note that it had started the agent starts it once more."""
    gang.script("print('once', flush=True)")
    gang.start(nodes=1, procs_per_node=1)
    assert set(gang.wait().values()) == {0}
    assert gang.result()["next"] == "end"
    again = gang.start_agent(0)
    assert again.wait(60) == 0
    assert [attempt.number for attempt in gang.run.attempts()] == [0]
    assert gang.log(0) == "once\n"


def test_agents_that_a_scheduler_starts_anew_go_on_with_the_next_attempt(gang: Gang) -> None:
    """Slurm puts a job back into its queue under the same number: the same launch, begun once more."""
    gang.script("""
        import os, sys, time
        print("up", flush=True)
        time.sleep(300) if os.environ["GANGLINE_ATTEMPT"] == "1" else sys.exit(3)
    """)
    restarts = {"max_restarts": 1, "max_infrastructure_restarts": 0, "backoff_s": 0.05, "max_backoff_s": 1.0}
    gang.start(nodes=2, procs_per_node=1, restarts=restarts)
    gang.until_running(1)
    for node in gang.agents:
        os.kill(gang.pid(node), signal.SIGKILL)
    gang.wait()
    assert not gang.attempt(1).result.exists()
    for node in range(gang.nodes):
        gang.start_agent(node)
    gang.wait()
    assert [attempt.number for attempt in gang.run.attempts()] == [0, 1, 2]
    assert [event["host"] for event in gang.events("agent_started", attempt=2)] == [os.uname().nodename]
    result = gang.result(2)
    assert (result["next"], result["launch"]) == ("end", 0)
    assert "no restart is left of --max-restarts 1" in result["restart_message"], "the first of its restarts counts"


def test_more_memory_than_was_asked_for_is_told_once_and_ends_nothing(gang: Gang) -> None:
    gang.script("""
        import os, pathlib, time
        held = bytearray(200_000_000) if os.environ["RANK"] == "1" else b""
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    """)
    gang.start(memory_bytes=100_000_000)

    def told() -> list[dict[str, Any]]:
        return [event for event in gang.events("warning") if "--memory" in event["text"]]

    gang.until(told)
    (gang.run.code / "go").touch()
    gang.wait()
    (warning,) = told()
    assert (warning["rank"], gang.result()["outcome"]) == (1, "succeeded")
