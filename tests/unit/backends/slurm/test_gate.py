from __future__ import annotations

import pytest

from gangline.backends.slurm.gate import Gate, Room, decide_room, parse_idle
from gangline.backends.slurm.link import Hello, Ran
from gangline.domain.errors import NoCapacity, Transient
from gangline.domain.pool import SlurmPool, WaitIn
from gangline.domain.spec import SlurmOptions
from gangline.testing import FakeClock, make_gang

HOME = "0123456789ab"
NONE = "allocation failure: Requested node configuration is not available\n"
WIDTHS = (20, 24, 10, 8, 12, 24, 24, 24, 10, 160, 160, 120, 160)


def row(job, state, comment):
    cells = [job, state, "0", "0", "0", "1", "N/A", "N/A", "1", "None", "node01", "x", comment]
    return "".join(cell[:width].ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + "\n"


class Link:
    def __init__(self, **said):
        self.said, self.calls = said, []

    def hello(self):
        return Hello(host="h", user="alice", home="/", python="p", python_version="3", clock_offset_s=100.0)

    def run(self, argv, *, stdin=b"", timeout_s=60.0):  # noqa: ARG002
        command = next(word for word in argv if word in {"squeue", "sbatch", "sinfo"})
        self.calls.append((command, stdin))
        said = self.said[command]
        return (
            said
            if isinstance(said, Ran)
            else Ran(rc=0, out="", err=said)
            if command == "sbatch"
            else Ran(rc=0, out=said, err="")
        )


def starts(in_s, clock):
    at = int(clock.now() + 100.0 + in_s)
    return f"sbatch: Job 36 to start at {at} using 2 processors on nodes node[01-02] in partition main\n"


def gate(link, clock, **pool):
    return Gate(SlurmPool(name="a100", work="/w", **pool), link, home=HOME, wall=clock.now)


@pytest.fixture
def clock():
    return FakeClock()


lanes = []
GANG = make_gang(run_id="one-7k3q", nodes=2)


def ask(one, options=SlurmOptions()):  # noqa: B008 - frozen
    """Why the gang waits, and in which lane; None: it is handed over."""
    try:
        one.check(GANG, options, "#!/bin/bash\n")
    except NoCapacity as full:
        lanes.append(full.lane)
        return full.what
    return None


def test_a_full_partition_speaks_for_itself_alone(clock):
    link = Link(
        sbatch=starts(7200, clock), sinfo="main*|0|idle\n", squeue=row("7", "RUNNING", "gangline:0123456789ab:x-1a1a/0")
    )
    lanes.clear()
    assert ask(gate(link, clock, wait_in=WaitIn.GANGLINE), SlurmOptions(partition="spot"))
    assert ask(gate(link, clock, wait_in=WaitIn.GANGLINE))
    assert ask(gate(link, clock, max_jobs=1))
    assert lanes == ["spot", "", None]


def test_a_pool_that_lets_slurm_queue_asks_nothing(clock):
    link = Link()
    assert ask(gate(link, clock)) is None
    assert link.calls == []


def test_a_gang_that_would_start_now_is_handed_over(clock):
    link = Link(sbatch=starts(5, clock))
    assert ask(gate(link, clock, wait_in=WaitIn.GANGLINE)) is None
    assert link.calls == [("sbatch", b"#!/bin/bash\n")]


def test_a_gang_that_would_wait_waits_here_and_says_until_when(clock):
    link = Link(sbatch=starts(7200, clock), sinfo="main*|1|idle\nspot|5|idle\n")
    why = ask(gate(link, clock, wait_in=WaitIn.GANGLINE))
    assert why.startswith("Pool `a100` has no room now: Slurm would start the run at ")
    assert ask(gate(link, clock, wait_in=WaitIn.GANGLINE), SlurmOptions(partition="spot")) is None


def test_whole_idle_nodes_count_unless_certain_nodes_are_asked_for(clock):
    link = Link(sbatch=starts(7200, clock), sinfo="main*|2|idle\n")
    one = gate(link, clock, wait_in=WaitIn.GANGLINE)
    assert ask(one) is None
    for options in (SlurmOptions(nodelist="node01"), SlurmOptions(constraint="a"), SlurmOptions(reservation="r")):
        assert ask(one, options) is not None


def test_nodes_that_are_down_are_waited_for_and_other_words_are_for_sbatch_to_say(clock):
    def pool(text):
        return gate(Link(sbatch=Ran(rc=1, out="", err=text)), clock, wait_in=WaitIn.GANGLINE)

    assert "Requested node configuration is not available" in ask(pool(NONE))
    assert ask(pool("sbatch: error: invalid partition specified: nope\n")) is None
    assert ask(pool("")) is None


def test_only_live_jobs_of_this_server_count(clock):
    lines = [
        row("1", "RUNNING", f"gangline:{HOME}:two-7k3q/0"),
        row("2", "PENDING", f"gangline:{HOME}:two-7k3q/1"),
        row("3", "COMPLETING", f"gangline:{HOME}:two-7k3q/2"),
        row("4", "RUNNING", "gangline:ffffffffffff:two-7k3q/0"),
        row("5", "RUNNING", f"gangline:{HOME}:one-7k3q/0"),
        row("6", "RUNNING", "my own"),
    ]
    link = Link(squeue="".join(lines))
    assert ask(gate(link, clock, max_jobs=3)) is None
    why = ask(gate(link, clock, max_jobs=2))
    assert why == "Pool `a100` has 2 jobs of Gangline in Slurm, and takes 2 at most; the run waits"
    with pytest.raises(Transient):
        ask(gate(Link(squeue=Ran(rc=1, out="", err="slurm_load_jobs error: x\n")), clock, max_jobs=2))


def test_room():
    assert decide_room("p", 2, Room(starts_at=1000.0, idle_nodes=2), 0.0) is None
    assert decide_room("p", 2, Room(starts_at=59.0), 0.0) is None
    assert decide_room("p", 2, Room(starts_at=61.0, idle_nodes=1), 0.0) is not None


def test_idle_nodes():
    said = Ran(rc=0, out="motd\nmain*|3|idle\nmain*|2|drain\nspot|9|idle\na|b\n", err="")
    assert parse_idle(said, is_default=True) == 3
    assert parse_idle(said, is_default=False) == 9
    assert parse_idle(Ran(rc=1, out="main*|3|idle\n", err=""), is_default=True) == 0
