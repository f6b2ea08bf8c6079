"""Signs of life that do not depend on a loop that turns, but on one that has not stopped."""

import threading
import time
from pathlib import Path

from gangline.agent.loop import Loop
from gangline.agent.pulse import Pulse

DEADLINE_S = 30.0


def test_it_beats_while_the_loop_waits_for_something_else() -> None:
    loop, beaten = Loop(), threading.Event()
    pulse = Pulse(loop)
    pulse.every(0.001, beaten.set)
    loop.after(0.0, lambda: loop.stop(0 if beaten.wait(DEADLINE_S) else 1))  # as a read from a slow disk
    assert loop.run() == 0
    pulse.close()


def test_a_loop_that_is_stuck_is_not_covered_up_unless_it_is_busy() -> None:
    loop = Loop()
    pulse = Pulse(loop)
    assert pulse.lives()
    loop.turned = time.monotonic() - 3600
    assert not pulse.lives()
    with pulse.busy(), pulse.busy():
        assert pulse.lives()
    assert not pulse.lives()
    loop.after(0.0, lambda: loop.stop(0))
    loop.run()
    assert pulse.lives()


def test_it_takes_no_signal_from_the_loop() -> None:
    loop, masks = Loop(), []
    done = threading.Event()
    pulse = Pulse(loop)

    def note() -> None:
        status = Path("/proc/thread-self/status").read_text(encoding="ascii")
        masks.append(int(status.partition("SigBlk:")[2].split()[0], 16))
        done.set()

    pulse.every(0.001, note)
    assert done.wait(DEADLINE_S)
    pulse.close()
    assert masks[0] >> 14 & 1  # SIGTERM
    assert masks[0] >> 16 & 1  # SIGCHLD
