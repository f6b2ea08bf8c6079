"""The screen of a run that failed."""

from __future__ import annotations

import re
import time
from typing import Any

from gangline.cli.summary import render_summary
from gangline.cli.terminal import UNLIMITED_COLUMNS, Terminal
from gangline.cli.why import render_why

LIBRARY = "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py"
TRACE = f"""Traceback (most recent call last):
  File "/home/ada/train.py", line 90, in <module>
    main()
  File "/home/ada/train.py", line 71, in main
    loss = model(batch).loss
           ^^^^^^^^^^^^
  File "{LIBRARY}", line 1532, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{LIBRARY}", line 1541, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
MESSAGE = (
    "Rank 2 on node 1 (gpu-7) ran out of memory of its accelerator: torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.00 GiB."
)
SCREEN = """\
llama-7k3q  llama
failed (out_of_memory) · exit code 1
Rank 2 on node 1 (gpu-7) ran out of memory of its accelerator: torch.OutOfMemoryError: CUDA out of
memory. Tried to allocate 2.00 GiB. No restart: --max-restarts is 0.

progress    step 120/200 60%
gang        2 nodes x 2 ranks = 4 ranks · no accelerators · pool local · strategy ddp
time        submitted 1m ago by ada · waited 2.0s · took 20s · 1 restart

first failure
  rank 2 (node 1, host gpu-7, pid 4711): exit code 1, 20s after the start, at step 120 of 200, in eval
  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
  │ Traceback (most recent call last):
  │   File "/home/ada/train.py", line 90, in <module>
  │     main()
  │   File "/home/ada/train.py", line 71, in main
  │     loss = model(batch).loss
  │            ^^^^^^^^^^^^
  │   (2 frames of torch)
  end of its log:
  │ step 119
  │ step 120
  others  ranks 0-1 ended by Gangline, waiting in all_reduce (train.py:73), at steps 119 to 120;
          rank 3 failed too: RuntimeError: Connection closed by peer
  then    no restart: --max-restarts is 0

attempts
  #  OUTCOME                 STARTED   TOOK  RESUMED FROM  START  WHY
  0  failed (killed)         hh:mm:ss   20s  -             warm   somebody killed it
  1  failed (out_of_memory)  hh:mm:ss   20s  step 100      warm   as said above

what to do next
  Lower the batch per rank.
  gangline logs llama-7k3q --rank 2    all that it wrote
  gangline compare llama-7k3q --ranks  what differs between its workers
  gangline debug llama-7k3q --pdb      repeat it here with few ranks, and stop where it raises
  gangline resume llama-7k3q           go on from its checkpoint of step 100
  gangline show llama-7k3q --full      its code, checkpoints and environment, too"""


def make_run(make: Any, **changes: Any) -> dict[str, Any]:
    failure = make.failure(
        error_type="torch.OutOfMemoryError",
        error_message="CUDA out of memory. Tried to allocate 2.00 GiB.",
        traceback=TRACE,
        log_tail="step 119\nstep 120\n" + "".join(f"[rank2]: {line}\n" for line in TRACE.splitlines()),
        phase="eval",
    )
    ended = {"ended": make.now - 40, "ended_by": "platform", "signal": 15}
    ranks = [
        make.rank(0, **ended, step=119, place="waiting in all_reduce (train.py:73)"),
        make.rank(1, **ended, step=120, place="waiting in all_reduce (train.py:73)"),
        make.rank(2, exit_code=1, ended=make.now - 40, ended_by="self"),
        make.rank(
            3, exit_code=1, ended=make.now - 40, ended_by="self", error="RuntimeError: Connection closed by peer"
        ),
    ]
    last = make.attempt(
        1,
        outcome="failed",
        reason="out_of_memory",
        message=MESSAGE,
        first_failure=failure,
        ranks=ranks,
        resume_step=100,
        resume="/x",
        hint="Lower the batch per rank.",
        restart_message="no restart: --max-restarts is 0",
        next="end",
    )
    first = make.attempt(0, outcome="failed", reason="killed", message="somebody killed it", next="restart")
    return make.run(
        **{
            "phase": "failed",
            "reason": "out_of_memory",
            "exit_code": 1,
            "ended": make.now - 40,
            "message": f"{MESSAGE} No restart: --max-restarts is 0.",
            "attempts": [first, last],
            "restarts": 1,
            "checkpoints": [make.checkpoint(100, latest=True)],
            "code": make.code(),
            **changes,
        }
    )


def screen(run: dict[str, Any], make: Any, *, width: int = 100, brief: bool = True) -> list[str]:
    return render_summary(run, Terminal(width=width, now=make.now), brief=brief)  # type: ignore[arg-type]


def test_the_screen_of_a_failed_run(make: Any) -> None:
    lines = screen(make_run(make), make)
    assert len(lines) <= 40
    assert re.sub(r"\d\d:\d\d:\d\d", "hh:mm:ss", "\n".join(lines)) == SCREEN


def test_one_screen_is_enough_whatever_happened(make: Any) -> None:
    frames = "".join(f'  File "/home/ada/f{n}.py", line 1, in f{n}\n    call()\n' for n in range(60))
    run = make_run(make, message="word " * 60)
    attempt = run["attempts"][-1]
    attempt["first_failure"] = make.failure(
        traceback=f"Traceback (most recent call last):\n{frames}ValueError: {'long ' * 200}\n",
        error_message="long " * 200,
        causes=[{"type": f"E{n}", "message": "m\n" * 50} for n in range(8)],
        log_tail="line\n" * 400,
    )
    attempt["ranks"] = [make.rank(rank, ended=1.0, exit_code=rank % 50 + 1, step=rank) for rank in range(64)]
    run["attempts"] = [make.attempt(n, outcome="failed", reason="killed", message="m") for n in range(30)] + [attempt]
    assert len(screen(run, make)) <= 43
    text = "\n".join(screen(run, make))
    assert "and 28 earlier ones" in text
    assert "more in other ways" in text


def test_a_message_of_several_lines_is_shown_as_lines(make: Any) -> None:
    said = "shapes differ:\n  a: (2, 3)\n  \x1b[31mb: (3, 3)\x1b[0m"
    trace = f'Traceback (most recent call last):\n  File "/home/ada/t.py", line 1, in <module>\nValueError: {said}\n'
    run = make_run(make, message=f"Rank 2 failed: ValueError: {said}")
    run["attempts"][-1]["first_failure"] = make.failure(error_type="ValueError", error_message=said, traceback=trace)
    run["attempts"][0]["message"] = "two\nlines"
    lines = screen(run, make)
    place = lines.index("  ValueError: shapes differ:")
    assert lines[place + 1 : place + 3] == ["    a: (2, 3)", "    b: (3, 3)"]
    assert "Rank 2 failed: ValueError: shapes differ: a: (2, 3) b: (3, 3)." in lines
    assert any(line.endswith("two lines") for line in lines)
    assert not [line for line in lines if "\\n" in line or "x1b" in line]


def test_a_run_that_goes_on_tells_of_its_last_failure(make: Any) -> None:
    run = make_run(make, phase="running", exit_code=None, ended=None, message="")
    run["attempts"][1]["restart_message"] = "restart 1 of 3 (infrastructure)"
    run["attempts"].append(make.attempt(2, outcome=None, ended=None, resume="/x", resume_step=110))
    text = "\n".join(screen(run, make, brief=False))
    assert "first failure of attempt 1\n" in text
    assert "then    restart 1 of 3 (infrastructure); attempt 2 started from step 110" in text
    assert "Lower the batch per rank." in text


def test_an_attempt_that_was_stopped_before_it_began_is_no_restart(make: Any) -> None:
    run = make_run(make, phase="stopped", restarts=2)
    run["attempts"][1]["restart_message"] = "restart 2 of 3 (user)"
    stopped = make.attempt(2, outcome="stopped", reason="stopped_by_user", start_mode=None)
    run["attempts"].append(stopped)
    text = "\n".join(screen(run, make, brief=False))
    assert "then    restart 2 of 3 (user); attempt 2 did not begin" in text
    assert "not begun (stopped_by_user)" in text
    assert text.count("1 restart\n") == 1
    stopped["start_mode"] = "warm"
    text = "\n".join(screen(run, make, brief=False))
    assert "not begun" not in text
    assert "2 restarts\n" in text


def test_a_failure_is_shown_before_the_attempt_is_over(make: Any) -> None:
    run = make_run(make, phase="running", exit_code=None, ended=None)
    attempt = run["attempts"][-1]
    attempt.update(outcome=None, ended=None, restart_message="", next=None)
    attempt["ranks"][0].update(ended=None, ended_by=None, step=None)
    text = "\n".join(render_why(run, Terminal(width=100, now=make.now)))
    assert "rank 0 did not end yet" in text
    assert "then    the other ranks are being ended" in text


def test_a_success_does_not_dwell_on_failures(make: Any) -> None:
    run = make_run(make, phase="succeeded", exit_code=0, message="")
    text = "\n".join(screen(run, make, brief=False))
    assert "first failure" not in text
    assert "Lower the batch" not in text


def test_a_failed_run_is_brief_unless_all_is_asked_for(gangline: Any, client: Any, make: Any) -> None:
    client.runs = {"llama-7k3q": make_run(make)}
    assert "environment Python" not in gangline("show", "llama-7k3q").out
    full = gangline("show", "llama-7k3q", "--full").out
    assert "environment Python 3.11.2" in full
    assert "checkpoints\n" in full


def test_a_run_that_no_rank_has_failed_gets_the_hint_of_its_reason(make: Any) -> None:
    run = make_run(make, reason="backend_rejected", attempts=[], message="Too large.")
    text = "\n".join(screen(run, make))
    assert "what to do next\n  Change what is asked for" in text
    odd = make_run(make, reason="of a newer server", attempts=[], message="Odd.")
    assert "what to do next\n  gangline logs" in "\n".join(screen(odd, make))


def test_who_left_early_is_said_first_and_libraries_do_not_name_their_own_files(make: Any) -> None:
    run = make_run(make)
    last = run["attempts"][-1]
    gloo = "RuntimeError: [/__w/pytorch/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"
    last["ranks"][3]["error"] = (
        f"{gloo}. This is typically caused by a remote worker hanging or bugs in the application"
    )
    last["ranks"][0] |= {"exit_code": 0, "signal": None, "ended_by": "self", "place": None}
    last["first_failure"] |= {"exit_code": None, "signal": 15, "signal_name": "SIGTERM"}
    lines = [line.strip() for line in screen(run, make)]
    others = next(number for number, line in enumerate(lines) if line.startswith("others"))
    said = " ".join(lines[others : others + 3])
    assert said.startswith("others  rank 0 had ended with exit code 0, at step 119; ")
    assert "RuntimeError: Read error: Connection reset by peer. This is typically" in said
    assert "pair.cc" not in said
    assert any("pid 4711): raised, 20s after the start" in line for line in lines)


def test_a_run_that_failed_before_any_rank_began_names_its_job(make: Any) -> None:
    job = {"job": "31", "log": "/w/job.log", "queue": "squeue --jobs=31", "details": "scontrol show job 31"}
    lines = screen(make_run(make, attempts=[], backend=job), make)
    assert [line.split() for line in lines if line.startswith("job's log")] == [["job's", "log", "/w/job.log"]]
    assert len(lines) <= 40
    assert "/w/job.log" not in "\n".join(screen(make_run(make, backend=job), make)), "a rank has said what was wrong"


def test_what_the_watchdog_suspects_is_shown_while_the_run_lives(make: Any) -> None:
    said = "No progress for 6.0 s of 60 s: Rank 3 has ended with 0; ranks 0-2 wait in barrier (t.py:10)."
    event = {"seq": 1, "time": make.now, "kind": "hang_suspected", "message": said, "data": {"attempt": 2}}
    run = make.run(phase="running", attempt=2, events=[event])
    assert f"watchdog    {time.strftime('%H:%M:%S', time.localtime(make.now))} No progress" in "\n".join(
        screen(run, make)
    )
    for later in ({"attempt": 3}, {"phase": "stopped"}):
        assert "watchdog" not in "\n".join(screen({**run, **later}, make))


def test_ranks_that_are_slow_now_are_shown(make: Any) -> None:
    def event(seq: int, rank: int, *, on: bool, attempt: int = 1) -> dict[str, Any]:
        data = {"rank": rank, "on": on, "attempt": attempt}
        return {"seq": seq, "time": 1.0, "kind": "straggler", "message": f"Rank {rank} is slow.", "data": data}

    events = [event(1, 3, on=True, attempt=0), event(2, 1, on=True), event(3, 2, on=True), event(4, 1, on=False)]
    run = make.run(phase="running", attempt=1, events=events)
    assert "slow        Rank 2 is slow." in screen(run, make)
    assert not [line for line in screen({**run, "phase": "stopped"}, make) if line.startswith("slow ")]


def test_a_line_of_any_length_stays_readable_in_a_file(make: Any) -> None:
    run = make_run(make)
    long = {"error_message": "x" * 4_000, "traceback": "T\n  y = " + "y" * 9_000, "log_tail": "z" * 4_000}
    run["attempts"][-1]["first_failure"].update(long)
    lines = render_summary(run, Terminal(width=UNLIMITED_COLUMNS, unicode=False))
    assert max(map(len, lines)) <= 410


def test_an_exception_that_was_only_printed_is_no_headline(make: Any) -> None:
    run = make_run(make)
    assert " --pdb" in "\n".join(render_summary(run, Terminal()))
    assert "the last exception in its log" not in "\n".join(render_why(run, Terminal()))
    run["attempts"][-1]["first_failure"]["error_in_log"] = True
    assert "\nthe last exception in its log, which may or may not be why:\ntorch.Out" in "\n".join(
        render_why(run, Terminal())
    )
    assert " --pdb" not in "\n".join(render_summary(run, Terminal())), "no debugger would stop there"


def test_the_end_of_a_log_is_quoted_as_logs_prints_it(make: Any) -> None:
    run = make_run(make)
    failure = run["attempts"][-1]["first_failure"]
    failure["log_tail"] = "\x1b[2J\x1b[31mred\x1b[0m\n\0\n 10% 1/10\r 20% 2/10\r 30% 3/10"
    lines = render_why(run, Terminal())
    assert [line for line in lines if line.endswith(("red", "3/10", "2/10"))] == ["│ red", "│  30% 3/10"]


def test_ranks_that_lost_a_peer_are_told_of_together(make: Any) -> None:
    run = make_run(make)
    run["attempts"][-1]["first_failure"].update(error_type="LeftEarly", error_message="", traceback=None)
    lost = (
        "RuntimeError: [/third_party/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:{}. This is typically "
    )
    for rank in run["attempts"][-1]["ranks"]:
        rank.update(ended_by="self", exit_code=1, signal=None, place=None, step=None)
        rank.update(error=lost.format(rank["rank"]) + "caused by a remote worker crashing. Check the logs. GLHF!")
    screen = "\n".join(render_summary(run, Terminal(width=100)))
    assert "\n  others  ranks 0-1 and 3 failed too: RuntimeError: Connection closed by peer.\n" in screen
    assert " --pdb" not in screen, "nothing was raised by the rank that left"
