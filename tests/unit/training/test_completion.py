"""What is kept only once the whole gang is known to be good."""

import json

import pytest

from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import RunDir
from gangline.training.completion import NotComplete, wait_for_gang
from gangline.training.context import Context


class Case:
    def __init__(self, folder):
        self.attempt = RunDir(folder).attempt(1)
        self.context = Context(
            rank=0, world_size=3, attempt=1, run_id="r", run_dir=folder, is_gangline=True, num_nodes=2
        )
        self.pauses = []

    def exits(self, rank, code=0, node=0):
        self.attempt.node(node).mkdir(parents=True, exist_ok=True)
        with JournalWriter(self.attempt.events(node)) as journal:
            journal.write("rank_exited", rank=rank, exit_code=code)

    def notice(self, kind):
        self.attempt.path.mkdir(parents=True, exist_ok=True)
        self.attempt.notice.write_text(json.dumps({"kind": kind}))

    def wait(self, *later):
        steps = iter(later)

        def pause(delay_s):
            self.pauses.append(delay_s)
            next(steps)()

        wait_for_gang(self.context, pause=pause)


def test_it_waits_for_every_other_rank_of_every_node(tmp_path):
    case = Case(tmp_path)
    case.exits(1)
    case.wait(lambda: None, lambda: case.exits(2, node=1))
    assert len(case.pauses) == 2


def test_a_rank_that_failed_is_never_counted(tmp_path):
    case = Case(tmp_path)
    case.exits(1, code=3)
    case.exits(2, node=1)
    with pytest.raises(StopIteration):  # the agent would end this rank
        case.wait(lambda: None)


@pytest.mark.parametrize("kind", ["stop", "preemption"])
def test_a_gang_that_was_told_to_end_is_not_complete(tmp_path, kind):
    case = Case(tmp_path)
    case.exits(1)
    with pytest.raises(NotComplete, match=kind):
        case.wait(lambda: case.notice(kind))


def test_a_notice_of_the_time_limit_counts_once_ranks_have_agreed_to_stop(tmp_path):
    case = Case(tmp_path)
    case.exits(1)
    case.exits(2)
    case.notice("time_limit")
    case.wait()
    case.attempt.stop_at.write_text('{"call": 3}')
    with pytest.raises(NotComplete, match="time limit"):
        case.wait()


def test_without_a_platform_nothing_is_waited_for():
    wait_for_gang(Context(world_size=4))
