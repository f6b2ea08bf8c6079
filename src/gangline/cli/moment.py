"""Moments as people write them: `10m` (ago), `14:30`, `2026-11-30 14:30`, seconds since 1970."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

from gangline.domain.errors import SpecInvalid
from gangline.wire.units import parse_duration

__all__ = ["Moment", "parse_moment"]

_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
_SINCE_1970 = 1e8
"""Larger numbers are no seconds ago."""
_DAY_S = 86400.0


class Moment(click.ParamType[float]):
    """A moment, as `time.time()` counts."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_moment(str(value), time.time())
        except ValueError:
            return self.fail(
                f"`{value}` is no time. Write how long ago (10m, 2h), a time of day (14:30) or a date "
                "(2026-11-30 14:30).",
                param,
                ctx,
            )


def parse_moment(text: str, now: float) -> float:
    """The moment that a text means; times of day and dates without a zone are those of this machine.

    Raises:
        ValueError: it is none.
    """
    text = text.strip()
    if _CLOCK.fullmatch(text):
        clock = datetime.strptime(text.partition(".")[0], "%H:%M:%S" if text.count(":") > 1 else "%H:%M")  # noqa: DTZ007
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - the zone of this machine is meant
        moment = today.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0).timestamp()
        return moment if moment <= now else moment - _DAY_S
    try:
        seconds = parse_duration(text.removesuffix(" ago"))
    except SpecInvalid:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    return seconds if seconds > _SINCE_1970 else now - seconds
