"""Gangs that hang, and gangs that only look like it: real torch ranks over gloo, with limits of a second or two."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = [pytest.mark.integration, pytest.mark.torch]

_GLOO = """
import os, sys, time, threading
import torch, torch.distributed as dist
import gangline
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["GANGLINE_ATTEMPT"])
"""


def watch(limit_s: float, on_hang: str = "fail") -> dict[str, Any]:
    """Keys of a launch; warm start imports torch once for all ranks, on a machine that is busy with other tests."""
    return {"watch": {"hang_timeout_s": limit_s, "on_hang": on_hang}, "start": "auto"}


def hang_of(gang: Gang, attempt: int = 0) -> dict[str, Any]:
    return gang.events("hang", attempt=attempt)[-1]


def test_a_rank_that_left_early_is_named_with_those_that_wait(gang: Gang) -> None:  # H1
    gang.script(
        _GLOO
        + """
dist.barrier()
if rank == 3:
    if os.fork() == 0:  # a helper that outlives it keeps its connections open, as NCCL would not look at them at all
        time.sleep(600)
    os._exit(0)
dist.barrier()
"""
    )
    result = gang.run_to_end(procs_per_node=4, **watch(24.0))
    assert (result["reason"], result["outcome"], result["next"]) == ("hang", "failed", "end")
    warned = gang.events("hang_suspected")[0]
    assert "Rank 3 has ended with 0; ranks 0-2 wait in barrier (train.py:13). That can never end" in warned["text"]
    assert warned["t"] < hang_of(gang)["t"]
    assert "Rank 3 has ended with 0; ranks 0-2 wait in barrier (train.py:13)" in result["message"]
    assert (result["first_failure"]["rank"], result["first_failure"]["error_type"]) == (3, "LeftEarly")
    places = {one["rank"]: one["place"] for one in result["ranks"]}
    assert places == {**dict.fromkeys(range(3), "waiting in barrier (train.py:13)"), 3: None}
    assert result["restart_message"] == "no restart: --on-hang is fail"
    assert hang_of(gang)["culprit"] == 3


def test_a_stopped_rank_is_named_at_once_and_paid_for_as_infrastructure(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
for step in range(10_000):
    dist.all_reduce(torch.ones(4))
    gangline.progress(step)
    time.sleep(0.02)
    if attempt == 1 and step == 3:
        time.sleep(0.3)
        os._exit(0)  # torch's own end may take seconds on a busy machine
"""
    )
    restarts = {"max_restarts": 0, "max_infrastructure_restarts": 1, "backoff_s": 0.05, "max_backoff_s": 1.0}
    gang.start(procs_per_node=2, **watch(2.5, "restart"), restarts=restarts)
    pids = gang.until_running()
    gang.until(lambda: gang.run.metrics(1).exists())
    os.kill(pids[1], signal.SIGSTOP)
    stopped = time.monotonic()
    gang.until(lambda: gang.events("warning"))
    assert "Rank 1 on node 0" in gang.events("warning")[0]["text"]
    gang.until_running(attempt=1)
    took_s = time.monotonic() - stopped
    assert set(gang.wait().values()) == {0}
    result = gang.result(0)
    assert (result["reason"], result["budget"], result["next"]) == ("hang", "infrastructure", "restart")
    assert "rank 0 waits in all_reduce (train.py:9)" in result["message"].lower()
    assert "rank 1 is stopped (SIGSTOP)" in result["message"]
    assert gang.result(1)["message"] == "All ranks exited with 0."
    assert took_s < 30


def test_a_stopped_rank_that_the_others_give_up_on_first_is_paid_for_as_infrastructure(gang: Gang) -> None:
    gang.script(
        _GLOO.replace('"gloo"', '"gloo", timeout=__import__("datetime").timedelta(seconds=8)')
        + """
dist.all_reduce(torch.ones(4))
gangline.progress(1)
if rank == 1 and attempt == 0:
    os.kill(os.getpid(), 19)
dist.all_reduce(torch.ones(4))
os._exit(0)
"""
    )
    restarts = {"max_restarts": 0, "max_infrastructure_restarts": 1, "backoff_s": 0.05, "max_backoff_s": 1.0}
    gang.run_to_end(procs_per_node=2, **watch(600.0, "restart"), restarts=restarts)
    result = gang.result(0)
    assert (result["reason"], result["budget"], result["next"]) == ("hang", "infrastructure", "restart")
    assert result["message"].startswith("Missing was rank 1 on node 0"), result["message"]
    assert "stopped (SIGSTOP)" in result["message"]
    assert (result["first_failure"]["rank"], result["first_failure"]["error_type"]) == (1, "Hang")
    assert "kill -STOP" in result["hint"]
    assert gang.result(1)["outcome"] == "succeeded"


def test_work_without_a_word_is_no_hang_and_idleness_is(gang: Gang) -> None:  # H2
    gang.script("""
        import os, time
        def burn(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sum(range(10_000))
        burn(4)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            with open("big", "wb") as file:
                file.write(bytes(8 << 20))
        open("idle", "w").write(str(time.time()))
        time.sleep(600)
    """)
    result = gang.run_to_end(procs_per_node=1, **watch(1.2))
    assert result["reason"] == "hang"
    assert result["ended"] - float((gang.run.code / "idle").read_text()) >= 1.0
    assert "rank 0 is in time.sleep (train.py:13)" in result["message"].lower()
    assert "gangline.progress" in result["hint"]


def test_a_thread_that_prints_is_no_progress_once_steps_were_reported(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
def chatter():
    while True:
        print("still here", flush=True)
        gangline.log({"memory": 1.0})
        time.sleep(0.1)
threading.Thread(target=chatter, daemon=True).start()
for step in range(5):
    dist.all_reduce(torch.ones(1))
    gangline.log({"loss": 1.0}, step=step)
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""
    )
    result = gang.run_to_end(nodes=2, procs_per_node=1, **watch(1.5))
    assert result["reason"] == "hang"
    assert (result["first_failure"]["rank"], result["first_failure"]["error_type"]) == (1, "Hang")
    assert "time.sleep(600)" in result["first_failure"]["traceback"]
    assert (
        "rank 0 waits in all_reduce (train.py:19); rank 1 is in time.sleep (train.py:18)" in result["message"].lower()
    )


def test_ranks_that_wait_in_different_collectives_are_told_apart(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
if rank == 0:
    dist.broadcast(torch.ones(1), src=1)
else:
    dist.recv(torch.ones(1), src=0)
"""
    )
    result = gang.run_to_end(procs_per_node=3, **watch(1.5))
    assert result["reason"] == "hang"
    assert "their order of collectives differs" in result["hint"]
    assert "ranks 1-2 wait in recv" in result["message"].lower()


def test_what_a_finished_rank_still_computes_is_no_hang(gang: Gang) -> None:
    gang.script("""
        import time, gangline
        gangline.progress(3, total=3)
        end = time.monotonic() + 5
        while time.monotonic() < end:  # an evaluation, an export, an upload
            sum(range(10_000))
    """)
    result = gang.run_to_end(procs_per_node=1, **watch(1.0))
    assert result["outcome"] == "succeeded", result["message"]
    assert not gang.events("hang")


def test_a_declared_phase_and_a_long_save_hold(gang: Gang) -> None:
    gang.script("""
        import time, gangline
        gangline.progress(1)
        with gangline.phase("evaluating"):
            time.sleep(3)
        with gangline.checkpoint(1) as path:
            time.sleep(3)
            (path / "model").write_text("x")
        gangline.progress(2)
    """)
    result = gang.run_to_end(procs_per_node=1, **watch(1.0))
    assert result["outcome"] == "succeeded"
    assert not gang.events("hang")


def test_a_rank_stuck_in_its_data_loader_is_named(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if rank == 1 and index == 4:
            time.sleep(600)
        return index
for step, batch in enumerate(torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=1)):
    dist.all_reduce(torch.ones(1))
    gangline.progress(step)
"""
    )
    result = gang.run_to_end(procs_per_node=2, **watch(2.0))
    assert result["reason"] == "hang"
    assert result["first_failure"]["rank"] == 1
    assert "rank 1 is in the data loader" in result["message"]
    dumps = [json.loads(path.read_text()) for path in gang.attempt().gang_stacks_taken()]
    dump = max(dumps, key=lambda taken: taken["time"])
    workers = [process for process in dump["ranks"][1]["processes"] if process["child"] and process["threads"]]
    assert any(
        frame["function"] == "__getitem__"
        for process in workers
        for thread in process["threads"]
        for frame in thread["frames"]
    )


def test_a_rank_that_raised_and_does_not_end_is_to_blame_with_its_exception(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
dist.all_reduce(torch.ones(1))
gangline.progress(1)
if rank == 1:
    class Slow:
        def __del__(self, sleep=time.sleep):  # as libraries do that wait for peers when the interpreter ends
            sleep(600)
    slow = Slow()
    raise ValueError("the real reason")
dist.all_reduce(torch.ones(1))
"""
    )
    result = gang.run_to_end(procs_per_node=3, **watch(2.0, "restart"))
    failure = result["first_failure"]
    assert (result["reason"], failure["rank"], failure["error_type"]) == ("user_error", 1, "ValueError")
    assert "the real reason" in result["message"]
    warned = [event["text"] for event in gang.events("warning")]
    assert any("Rank 1 raised and did not end" in text for text in warned), warned


def test_a_hang_that_is_only_warned_of_is_told_again_and_ends_nothing(gang: Gang) -> None:
    gang.script(
        _GLOO
        + """
dist.all_reduce(torch.ones(1))
gangline.progress(1)
while rank == 1 and not os.path.exists("go"):
    time.sleep(0.2)
dist.all_reduce(torch.ones(1))
gangline.progress(2)
dist.barrier()
os._exit(0)  # torch's own end may take seconds on a busy machine
"""
    )
    gang.start(procs_per_node=2, **watch(1.2, "warn"))
    gang.until(lambda: len(gang.events("hang")) >= 2)
    assert not gang.attempt().result.exists()
    first, second = gang.events("hang")[:2]
    assert (first["action"], first["culprit"]) == ("warn", 1)
    assert second["quiet_s"] > first["quiet_s"] + 1.0
    (gang.run.code / "go").touch()
    gang.wait()
    assert gang.result()["outcome"] == "succeeded", gang.result()["message"]
