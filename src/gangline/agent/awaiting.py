"""The wait of an agent whose job was submitted before its launch was needed. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import RunDir

__all__ = ["await_launch"]

_LOOK_S = 0.5


def await_launch(
    run: RunDir,
    number: int,
    patience_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> str:
    """Wait for `launch.json`; "" once it is there, else why it is waited for no longer."""
    spec, until = run.launch(number).spec, monotonic() + patience_s
    while not spec.exists():
        if _is_over(run):
            return f"the run is over: launch {number} is not needed, and nothing was started"
        if monotonic() >= until:
            return f"launch {number} was not needed within {patience_s:g} s, and nothing was started"
        sleep(_LOOK_S)
    return ""


def _is_over(run: RunDir) -> bool:
    """Whether the leader before this one has said that nothing follows."""
    attempts = run.attempts()
    try:
        result = read_json(attempts[-1].result) if attempts else None
    except (OSError, Unreadable):
        return False
    return result is not None and result.get("next") == "end"
