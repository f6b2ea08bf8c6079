"""NCCL's flight recorder of one node's ranks: asked to write, and read. `environ.py` tells ranks where to write.

Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gangline.agent.watch.flight import Flight, parse_flight
from gangline.rundir.layout import AttemptDir

__all__ = ["ask_for_flight", "read_flight"]


def ask_for_flight(attempt: AttemptDir, rank: int) -> None:
    """Have a rank write its record; where it listens to nobody, nothing happens."""
    with suppress(OSError):
        pipe = os.open(attempt.nccl_pipe(rank), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, b"1\n")
        finally:
            os.close(pipe)


def read_flight(attempt: AttemptDir, rank: int) -> tuple[Flight | None, str]:
    """Where the rank stands, and what is wrong with its record, if anything."""
    path = attempt.nccl_record(rank)
    if not path.exists():
        return None, ""
    from gangline.agent.watch.plainpickle import LARGEST_BYTES, Refused, read_plain_pickle  # noqa: PLC0415 - rarely needed

    try:
        with path.open("rb") as file:
            return parse_flight(rank, read_plain_pickle(file.read(LARGEST_BYTES + 1))), ""
    except OSError as error:
        return None, f"{path} cannot be read: {error}"
    except Refused as error:
        return None, f"{path} is not read, as it is no record of collectives: {error}"
