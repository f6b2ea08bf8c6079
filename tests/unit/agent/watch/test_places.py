"""From dumps to who waits where, and who is missing."""

from __future__ import annotations

import json

import pytest

from gangline.agent.watch.frames import Frame, Thread, main_thread, parse_faulthandler, parse_pyspy, with_code
from gangline.agent.watch.places import (
    RankView,
    decide_finding,
    decide_place,
    decide_raised,
    have_moved,
    render_ranks,
)

_TORCH = "/venv/lib/python3.11/site-packages/torch"

ALL_REDUCE = f"""
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f939f7e2b80 (most recent call first):
  File "{_TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{_TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/run/code/train.py", line 9 in work
  File "/run/code/train.py", line 10 in <module>
"""


def thread(*frames: tuple[str, int, str, str]) -> list[Thread]:
    return [Thread(name="0x1", frames=tuple(Frame(file=a, line=b, function=c, code=d) for a, b, c, d in frames))]


def view(rank: int, text: str = ALL_REDUCE, state: str = "runs") -> RankView:
    return RankView(rank=rank, threads=parse_faulthandler(text), state=state)


SLEEP = thread(("/run/code/data.py", 17, "load", "time.sleep(600)"), ("/run/code/train.py", 3, "<module>", ""))


def test_where_an_exception_was_raised():
    trace = f"""Traceback (most recent call last):
  File "/run/code/train.py", line 9, in <module>
    dist.all_reduce(t)
  File "{_TORCH}/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "{_TORCH}/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
RuntimeError: Connection closed by peer
"""
    assert decide_raised(trace) == "waiting in all_reduce (train.py:9)"
    own = (
        'Traceback (most recent call last):\n  File "/c/a.py", line 3, in f\n    raise ValueError("x")\nValueError: x\n'
    )
    assert decide_raised(f"{own}\nDuring handling of the above exception, ...\n\n{trace}") == decide_raised(trace)
    assert decide_raised(own) == "at a.py:3"
    assert decide_raised("") == decide_raised("ValueError: x") == ""


def test_some_ranks_do_not_tell_who_waits_for_whom():
    assert "All ranks wait in the same call" in decide_finding([view(0)]).hint
    found = decide_finding([view(0)], whole=False)
    assert (found.text, found.hint, found.culprit) == ("Rank 0 waits in all_reduce (train.py:9).", "", None)
    both = [view(0), RankView(rank=1, threads=SLEEP)]
    assert decide_finding(both).culprit == 1
    assert decide_finding(both, whole=False).culprit is None
    assert "SIGCONT" in decide_finding([view(0, state="stopped")], whole=False).hint


def test_a_dump_is_read_thread_by_thread():
    threads = parse_faulthandler(ALL_REDUCE)
    assert [one.name for one in threads] == ["0x00007f0000000001", "0x00007f939f7e2b80"]
    main = main_thread(threads)
    assert main is threads[1]
    assert main.frames[0].function == "all_reduce"
    assert main.frames[-1].line == 10


def test_a_torn_or_foreign_text_gives_what_it_holds():
    assert parse_faulthandler("") == []
    assert parse_faulthandler("Fatal Python error\n\x00") == []
    assert parse_faulthandler(ALL_REDUCE[:300])[0].frames[0].function == "wait"
    for text in ("", "Error: permission denied", "{}", '["x"]', "[" * 10_000):
        assert parse_pyspy(text) == []


def test_py_spy_is_read_with_its_main_thread_last_and_native_frames():
    listed = [
        {
            "thread_name": "MainThread",
            "frames": [
                {"name": "pthread_cond_wait", "filename": "libc.so.6", "line": 0},
                {"name": "all_reduce", "filename": f"{_TORCH}/distributed/distributed_c10d.py", "line": 3252},
                {"name": "<module>", "filename": "/run/code/train.py", "line": 4},
            ],
        },
        {"thread_name": None, "os_thread_id": 7, "frames": []},
    ]
    threads = parse_pyspy(json.dumps(listed))
    assert [one.name for one in threads] == ["7", "MainThread"]
    assert str(decide_place(threads)) == "in all_reduce (train.py:4)"


def test_source_lines_are_added_to_the_users_own_frames_alone():
    asked = []

    def read_line(file: str, line: int) -> str:
        asked.append((file, line))
        return "  dist.all_reduce(t)  "

    found = with_code(parse_faulthandler(ALL_REDUCE), read_line)
    assert found[1].frames[2].code == "dist.all_reduce(t)"
    assert asked == [("/run/code/train.py", 9), ("/run/code/train.py", 10)]


@pytest.mark.parametrize(
    ("frames", "said", "waits"),
    [
        ([(f"{_TORCH}/distributed/distributed_c10d.py", 1, "barrier")], "barrier", True),
        (
            [
                (f"{_TORCH}/distributed/distributed_c10d.py", 9, "broadcast"),
                (f"{_TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
                (f"{_TORCH}/distributed/distributed_c10d.py", 1, "broadcast_object_list"),
            ],
            "broadcast_object_list",
            True,
        ),
        (
            [
                (f"{_TORCH}/distributed/rendezvous.py", 1, "_create_c10d_store"),
                (f"{_TORCH}/distributed/distributed_c10d.py", 1, "init_process_group"),
            ],
            "init_process_group",
            True,
        ),
        ([(f"{_TORCH}/autograd/graph.py", 1, "_engine_run_backward")], "backward", True),
        ([(f"{_TORCH}/nn/parallel/distributed.py", 1, "_pre_forward")], "DistributedDataParallel", True),
        (
            [
                ("/usr/lib/python3.11/threading.py", 327, "wait"),
                (f"{_TORCH}/utils/data/dataloader.py", 1, "_try_get_data"),
            ],
            "the data loader",
            False,
        ),
        ([(f"{_TORCH}/serialization.py", 1, "_save")], "torch.save or torch.load", False),
        ([(f"{_TORCH}/cuda/__init__.py", 1, "synchronize")], "torch.cuda.synchronize", True),
        ([("/home/g.pyz/gangline/training/gathering.py", 1, "wait_for_others")], "gangline.checkpoint", True),
    ],
)
def test_a_place_is_named_by_the_call_that_people_know(frames, said, waits):
    stack = thread(*((*frame, "") for frame in frames), ("/run/code/train.py", 41, "<module>", "step()"))
    place = decide_place(stack)
    assert (place.what, place.where, place.waits) == (said, "train.py:41", waits)


@pytest.mark.parametrize(
    ("code", "said", "waits"),
    [
        ("time.sleep(600)", "in time.sleep (train.py:3)", False),
        ("work.wait()", "in wait (train.py:3)", True),
        ("works[-1].wait()", "in wait (train.py:3)", True),
        ("comm.Allreduce(a, b)", "in Allreduce (train.py:3)", True),
        ("if dist.get_rank() == 0:", "in dist.get_rank (train.py:3)", False),
        ("x = f(g(1))", "at train.py:3", False),
        ("", "at train.py:3", False),
    ],
)
def test_a_rank_in_the_users_own_line_is_where_that_line_is(code, said, waits):
    place = decide_place(thread(("/run/code/train.py", 3, "<module>", code)))
    assert (str(place), place.waits) == (said, waits)


def test_a_rank_that_is_missing_is_named():
    finding = decide_finding([view(0), view(1), view(2), RankView(rank=3, threads=SLEEP)])
    assert finding.text == "Ranks 0-2 wait in all_reduce (train.py:9); rank 3 is in time.sleep (data.py:17)."
    assert finding.culprit == 3
    assert not finding.certain


def test_a_rank_that_has_left_is_named_first_and_the_rest_can_never_go_on():
    finding = decide_finding([view(0), view(1), RankView(rank=2, state="ended")])
    assert finding.text == "Rank 2 has ended with 0; ranks 0-1 wait in all_reduce (train.py:9)."
    assert (finding.culprit, finding.certain) == (2, True)
    busy = decide_finding([view(0), RankView(rank=1, threads=SLEEP), RankView(rank=2, state="ended")])
    assert not busy.certain


def test_a_rank_that_is_stopped_comes_before_all_else():
    finding = decide_finding([view(0), RankView(rank=1, state="stopped"), RankView(rank=2, threads=SLEEP)])
    assert finding.culprit == 1
    assert "rank 1 is stopped (SIGSTOP)" in finding.text
    assert "SIGCONT" in finding.hint


def test_ranks_in_different_collectives_have_no_missing_one_but_a_minority():
    barrier = ALL_REDUCE.replace("all_reduce", "barrier")
    finding = decide_finding([view(0), view(1), view(2, barrier)])
    assert finding.culprit == 2
    assert "order of collectives differs" in finding.hint


def test_ranks_that_all_wait_in_one_call_have_no_culprit():
    finding = decide_finding([view(0), view(1)])
    assert finding.culprit is None
    assert "network" in finding.hint


def test_nothing_at_all_is_said_as_such():
    assert decide_finding([]).text == "No stacks could be taken."
    assert decide_finding([RankView(rank=0, state="silent")]).text == "Rank 0 gives no stacks."


@pytest.mark.parametrize(("ranks", "said"), [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([4, 2], "ranks 2, 4")])
def test_ranks_read_as_spans(ranks, said):
    assert render_ranks(ranks) == said


SPIED = [
    Thread(
        name="MainThread",
        frames=(
            Frame(file="libc.so.6", line=0, function="clock_nanosleep"),
            Frame(file="Modules/timemodule.c", line=2100, function="time_sleep"),
            *SLEEP[0].frames,
        ),
    )
]
"""The stack of `SLEEP` as py-spy tells it, native frames and all."""


def test_a_rank_that_py_spy_and_then_the_handler_see_at_the_same_lines_has_not_moved():
    spied = RankView(rank=0, threads=SPIED)
    handled = RankView(rank=0, threads=SLEEP)
    assert not have_moved([spied], [handled])
    assert not have_moved([handled], [spied])


def test_what_has_moved_is_at_another_line_and_waits_for_no_other():
    elsewhere = RankView(rank=0, threads=thread(("/run/code/data.py", 18, "load", "x = 1")))
    asleep = RankView(rank=0, threads=SLEEP)
    assert have_moved([asleep], [elsewhere])
    assert not have_moved([view(0)], [view(0, ALL_REDUCE.replace("line 9", "line 8"))])
    assert not have_moved([asleep], [elsewhere, view(1, state="stopped")])
    assert not have_moved([asleep], [RankView(rank=0, state="silent")])
    assert not have_moved([], [elsewhere])


def test_ranks_that_all_wait_for_the_gang_to_assemble_may_have_counted_it_wrongly():
    frames = [
        (f"{_TORCH}/distributed/rendezvous.py", 278, "_env_rendezvous_handler", ""),
        ("/c/train.py", 2, "<module>", ""),
    ]
    finding = decide_finding([RankView(rank=rank, threads=thread(*frames)) for rank in range(2)])
    assert finding.text == "Ranks 0-1 wait in init_process_group (train.py:2)."
    assert "another world size" in finding.hint
    assert "shapes" in decide_finding([view(0), view(1)]).hint


def test_what_we_run_in_a_rank_is_no_place_of_it():
    ours = Frame(file="/runs/r/launches/000/injected/sitecustomize.py", line=258, function="_load")
    script = Frame(file="/runs/r/code/train.py", line=6, function="<module>", code="step()")
    assert decide_place([Thread(name="MainThread", frames=(ours,))]).told == ""
    assert decide_place([Thread(name="MainThread", frames=(ours, script))]).told == "in step (train.py:6)"
