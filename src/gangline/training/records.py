"""What training code says while it runs: metrics, progress, phases, warnings; see `writer.py` for where it goes.

Standard library only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import SupportsFloat

from gangline.training import session
from gangline.training.writer import encode

__all__ = ["log", "phase", "progress", "warn"]


def log(metrics: Mapping[str, SupportsFloat], *, step: int | None = None) -> None:
    """Record numbers: `gangline.log({"loss": loss, "lr": lr}, step=step)`.

    Numbers, and anything of one element that has `.item()` (a tensor, a NumPy scalar; a value on a device is waited
    for). Not a number and infinities are kept as such. Whatever else is left out, with one warning per name. Without a
    platform nothing is written.
    """
    session.writer().metrics(metrics, step)


def progress(step: int, total: int | None = None) -> None:
    """Say how far training is: `gangline.progress(step, total_steps)`, after each step. It tells slow from stuck."""
    records = session.writer()
    whole = records.whole(total, "total")
    known = "null" if whole.startswith(("0", "-")) else whole  # nothing can be a part of no steps
    records.add("p", f'"s":{records.whole(step, "step")},"n":{known}')


@contextlib.contextmanager
def phase(name: str, *, limit_s: float | None = None) -> Iterator[None]:
    """Name what the rank does for a while: `with gangline.phase("evaluating"): ...`. It is not taken for a hang.

    Args:
        limit_s: how long it may last; default: ten times what the run may be without progress (`--hang-timeout`).
    """
    records = session.writer()
    quoted = encode(str(name))
    allowed = "" if limit_s is None else f',"l":{_seconds(limit_s)}'
    records.add("h", f'"name":{quoted},"on":true{allowed}')
    try:
        yield
    finally:
        records.add("h", f'"name":{quoted},"on":false')


def warn(text: str) -> None:
    """Say in the rank's log, and record, that something went wrong that does not stop training. Each text once."""
    session.writer().warn(text)


def _seconds(limit_s: float) -> str:
    """As JSON; what is no time says nothing."""
    try:
        seconds = float(limit_s)
    except (TypeError, ValueError):
        return "null"
    return repr(seconds) if math.isfinite(seconds) and seconds >= 0 else "null"
