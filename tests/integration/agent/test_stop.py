"""Stops: notices, grace, and that nothing outlives them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = pytest.mark.integration

HANDLER = """
    import os, signal, sys, time
    def save(*_):
        for part in range(10):
            time.sleep(0.1)
            open(f"saved-{os.environ['RANK']}", "a").write(f"{part}\\n")
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    while True:
        time.sleep(0.05)
"""


def test_a_stop_reaches_every_rank_and_waits_for_the_handlers(gang: Gang) -> None:
    gang.script(HANDLER)
    gang.start(nodes=2)
    for rank in range(4):
        gang.until_said("up", rank=rank)
    gang.stop()
    gang.wait()
    result = gang.result()
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("stopped", "stopped_by_user", 130)
    assert "alice" in result["message"]
    assert result["next"] == "end"
    for rank in range(4):
        assert len((gang.run.code / f"saved-{rank}").read_text().splitlines()) == 10
        assert gang.log(rank).endswith("saved\n")  # G2
    notice = json.loads(gang.attempt().notice.read_text())
    assert notice["kind"] == "stop"
    assert notice["deadline"] > notice["time"]


def test_python_inside_of_a_shell_wrapper_gets_the_signal_and_its_grace(gang: Gang) -> None:  # F2
    gang.script(HANDLER)
    gang.start(entry_kind="command", entry=f"{sys.executable} train.py; true", procs_per_node=1)
    gang.until_said("up")
    gang.stop(grace_s=20.0)
    gang.wait()
    assert len((gang.run.code / "saved-0").read_text().splitlines()) == 10
    assert gang.result()["outcome"] == "stopped"


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace(gang: Gang) -> None:
    gang.script("""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(600)
    """)
    gang.start(nodes=2)
    for rank in range(4):
        gang.until_said("up", rank=rank)
    gang.stop(grace_s=0.3)
    gang.wait()
    result = gang.result()
    assert {one["signal"] for one in result["ranks"]} == {9}
    assert result["outcome"] == "stopped"
    assert gang.events("killed")


def test_workers_of_a_training_process_live_on_while_it_saves(gang: Gang) -> None:
    gang.script("""
        import multiprocessing, signal, sys, time
        def work(queue):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            print("up", flush=True)
            while True:
                queue.put(1)
                time.sleep(0.05)
        if __name__ == "__main__":
            queue = multiprocessing.Queue()
            worker = multiprocessing.Process(target=work, args=(queue,), daemon=True)
            worker.start()
            stop = []
            signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
            while not stop:
                queue.get()
            for _ in range(5):
                queue.get()
            print("worker alive", worker.is_alive(), flush=True)
    """)
    gang.start(procs_per_node=1)
    gang.until_said("up")
    gang.stop()
    gang.wait()
    assert "worker alive True" in gang.log()


def test_a_failure_kills_ranks_that_could_only_set_a_flag(gang: Gang) -> None:
    gang.script("""
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: None)
        if os.environ["RANK"] == "0":
            while not os.path.exists("up"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        where = os.environ["GANGLINE_RUN_DIR"] + "/attempts/0/rank-00001.cooperative"
        open(where, "w").close()
        open("up", "w").close()
        time.sleep(600)
    """)
    result = gang.run_to_end(stop={"failure_grace_s": 60.0})
    assert result["ranks"][1]["signal"] == 9
    assert result["ended"] - result["first_failure"]["time"] < 30


def test_a_time_limit_ends_the_attempt_with_a_notice(gang: Gang) -> None:
    gang.script(HANDLER)
    result = gang.run_to_end(stop={"time_limit_s": 1.0, "grace_s": 10.0}, procs_per_node=1)
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("failed", "time_limit", 124)
    assert gang.log().endswith("saved\n")
    assert json.loads(gang.attempt().notice.read_text())["kind"] == "time_limit"
    assert any("time limit" in event["text"] for event in gang.events("warning"))


def test_a_time_limit_may_count_as_a_stop(gang: Gang) -> None:
    gang.script("import time; time.sleep(600)")
    result = gang.run_to_end(stop={"time_limit_s": 0.2, "on_time_limit": "stop"}, procs_per_node=1)
    assert (result["outcome"], result["reason"]) == ("stopped", "time_limit")


UNTIL_TOLD = """
    import os, sys, time
    import gangline
    gang = gangline.current()
    found = gangline.latest_checkpoint()
    step = found.step if found else 0
    goal = step + 3 if found else 10**9  # the first attempt goes on until it is told
    while step < goal:
        step += 1
        time.sleep(0.02)
        with open(f"steps-{gang.rank}", "a") as file:
            file.write(f"{step}\\n")
        gangline.progress(step, total=goal)
        stopping = gangline.should_stop()
        if stopping:
            with gangline.checkpoint(step) as folder:
                (folder / f"{gang.rank}.txt").write_text(str(step))
            break
    print("left", flush=True)
"""
NOTICED = {"time_limit_s": 60.0, "time_limit_notice_s": 59.0, "grace_s": 5.0}
"""Told after a second; on a slow machine there is time enough to act on it."""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_notice_lets_ranks_save_and_the_run_goes_on(gang: Gang, ranks: int) -> None:  # S8
    gang.script(UNTIL_TOLD)
    gang.run_to_end(procs_per_node=ranks, stop={**NOTICED, "on_time_limit": "continue"})
    first, last = gang.result(0), gang.result()
    assert (first["outcome"], first["reason"], first["next"]) == ("stopped", "time_limit", "restart")
    assert first["budget"] == "continuation"
    assert "all ranks were told, and ended by themselves" in first["message"]
    assert last["outcome"] == "succeeded"
    assert gang.events("notice")[0]["cause"] == "time_limit"
    saved = gang.result(1)["resume_step"]
    assert f"goes on from step {saved}" in first["restart_message"]
    for rank in range(ranks):
        steps = [int(line) for line in (gang.run.code / f"steps-{rank}").read_text().split()]
        assert steps == list(range(1, steps[-1] + 1))  # none was lost, none was done twice
        assert gang.log(rank).endswith("left\n")


def test_ranks_that_leave_for_a_notice_have_not_succeeded(gang: Gang) -> None:
    gang.script(UNTIL_TOLD)
    result = gang.run_to_end(procs_per_node=1, stop=NOTICED)
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("failed", "time_limit", 124)
    assert "--on-time-limit continue" in result["hint"]
    assert result["ended"] - result["running"] < 55  # well before the limit


def test_a_notice_may_be_a_signal_to_every_python_rank(gang: Gang) -> None:  # S8
    gang.script("""
        import os, signal, sys, time
        def save(*_):
            open(f"saved-{os.environ['RANK']}", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGUSR1, save)
        time.sleep(600)
    """)
    stop = {"time_limit_s": 60.0, "time_limit_notice_s": 55.0, "notice_signal": "USR1"}
    entry = f"{sys.executable} train.py; exit $?"
    result = gang.run_to_end(procs_per_node=2, entry_kind="command", entry=entry, stop=stop)
    assert (result["outcome"], result["reason"]) == ("failed", "time_limit")
    assert [one["exit_code"] for one in result["ranks"]] == [0, 0]
    assert all((gang.run.code / f"saved-{rank}").exists() for rank in range(2))


def test_a_signal_to_one_rank_makes_all_leave_together_and_is_a_preemption(gang: Gang) -> None:
    gang.script("""
        import os, signal, time
        import gangline
        step = 0
        while not gangline.should_stop():
            step += 1
            gangline.progress(step, 100_000)
            if step == 3 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.02)
    """)
    result = gang.run_to_end(procs_per_node=3, restarts={"max_preemptions": 0})
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("preempted", "preempted", 143)
    assert result["message"].startswith("SIGTERM came to rank 1 from outside: all ranks were told")
    assert [one["exit_code"] for one in result["ranks"]] == [0, 0, 0]


def test_a_script_that_ignores_the_notice_is_ended_at_the_limit(gang: Gang) -> None:
    gang.script("import time; time.sleep(600)")
    stop = {"time_limit_s": 1.0, "time_limit_notice_s": 0.5, "on_time_limit": "continue"}
    result = gang.run_to_end(procs_per_node=2, stop=stop)
    assert (result["outcome"], result["reason"], result["next"]) == ("failed", "time_limit", "end")
    assert "ranks 0, 1 had not ended although told 0.5 s before" in result["message"]
    assert "No checkpoint was saved in this attempt" in result["message"]
    assert {one["signal"] for one in result["ranks"]} == {15}


@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_to_an_agent_preempts_the_gang(gang: Gang, node: int) -> None:
    gang.script(HANDLER)
    gang.start(nodes=2, procs_per_node=1)
    gang.until_running()
    for rank in range(2):
        gang.until_said("up", rank=rank)
    gang.agents[node].terminate()
    assert set(gang.wait().values()) == {0}
    result = gang.result()
    assert (result["outcome"], result["reason"], result["next"]) == ("preempted", "preempted", "relaunch")
    assert f"by SIGTERM to the agent of node {node}, sent from outside" in result["message"]
    assert all(gang.log(rank).endswith("saved\n") for rank in range(2))


def test_a_stop_while_the_gang_waits_to_restart_ends_it(gang: Gang) -> None:
    gang.script("raise SystemExit(1)")
    gang.start(restarts={"max_restarts": 5, "backoff_s": 60.0}, restarts_used={"user": 1})
    gang.until(gang.attempt(0).result.exists)
    gang.stop()
    gang.wait()
    assert (gang.result()["attempt"], gang.result()["outcome"]) == (1, "stopped")


def test_a_stop_before_the_gang_is_complete_ends_it(gang: Gang) -> None:
    gang.script("print('never')")
    gang.write_launch(nodes=2)
    gang.start_agent(0)
    gang.until(lambda: gang.events("agent_started"))
    gang.stop()
    gang.wait()
    assert gang.result()["outcome"] == "stopped"


def test_requests_that_are_not_known_are_reported(gang: Gang) -> None:
    gang.script("import time; time.sleep(600)")
    gang.start(procs_per_node=1)
    gang.until_running()
    with gang.run.control.open("a") as file:
        file.write('{"kind": "dance"}\nnot json\n')
    gang.until(lambda: any("dance" in event["text"] for event in gang.events("warning")))
    gang.stop(grace_s=0.0)
    gang.wait()
    assert gang.result()["outcome"] == "stopped"


STEPS = """
    import os, time
    import gangline
    resume = gangline.latest_checkpoint()
    step = int((resume.path / "step.txt").read_text()) if resume else 0
    print("from", step, flush=True)
    while step < 1000:
        time.sleep(0.1)
        step += 1
        print("step", step, flush=True)
        if gangline.should_stop():
            with gangline.checkpoint(step) as path:
                time.sleep(float(os.environ.get("SAVE_S", "0")))
                (path / "step.txt").write_text(str(step))
            print("saved", step, flush=True)
            break
"""


def test_a_loop_saves_at_a_step_boundary_and_goes_on_from_there(gang: Gang) -> None:  # C6
    gang.script(STEPS)
    gang.start(procs_per_node=1)
    gang.until_said("step 2\n")
    gang.stop("preemption", grace_s=30.0)
    gang.wait()
    assert (gang.result(0)["outcome"], gang.result(0)["next"]) == ("preempted", "relaunch")
    saved = int(gang.log().rpartition("saved ")[2])
    offset = gang.run.control.stat().st_size
    gang.start(procs_per_node=1, launch=1, first_attempt=1, control_offset=offset)
    gang.until_said(f"step {saved + 1}\n", attempt=1)
    assert gang.log(0, 1).startswith(f"from {saved}\n")
    gang.stop(grace_s=0.0)
    gang.wait()
    assert gang.result(1)["resume_step"] == saved


def test_a_save_that_is_cut_never_replaces_the_good_one(gang: Gang) -> None:  # C6
    gang.script(STEPS)
    for attempt, save_s in enumerate(["0", "60"]):
        offset = gang.run.control.stat().st_size if attempt else 0
        gang.start(
            procs_per_node=1,
            launch=attempt,
            first_attempt=attempt,
            control_offset=offset,
            env={"SAVE_S": save_s},
        )
        gang.until(lambda number=attempt: gang.log(0, number).count("step ") > 1)  # the loop has asked once
        gang.stop("preemption", grace_s=1.0 if attempt else 30.0)
        gang.wait()
    saved = int(gang.log(0, 0).rpartition("saved ")[2])
    assert "saved" not in gang.log(0, 1)
    offset = gang.run.control.stat().st_size
    gang.start(procs_per_node=1, launch=2, first_attempt=2, control_offset=offset)
    gang.until_said(f"from {saved}\n", attempt=2)
    gang.stop(grace_s=0.0)
    gang.wait()
    assert gang.result(2)["resume_step"] == saved
    assert any("passed over" in event["text"] for event in gang.events("warning", attempt=2))


def test_a_stop_does_not_wait_for_imports(gang: Gang) -> None:
    gang.script("print('never')")
    gang.script("import time; time.sleep(600)", name="slow.py")
    gang.start(start="warm", preload=["slow"], procs_per_node=1)
    gang.until(lambda: gang.events("joined"))
    gang.stop(grace_s=30.0)
    gang.wait(20.0)
    assert gang.result()["outcome"] == "stopped"
    assert gang.log() == ""
    assert gang.left_behind() == []
