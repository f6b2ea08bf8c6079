"""Names of signals, as people know them. Pure; standard library only."""

from __future__ import annotations

import signal

__all__ = ["signal_name"]


def signal_name(number: int | None) -> str | None:
    """`SIGKILL` for 9; None for None."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
