"""The lines of a follow stream: a `LogChunk`, an `EventLine` or, last, an `EndLine`. See docs/reference/http-api.md."""

from __future__ import annotations

from typing_extensions import TypedDict

from gangline.wire.views import EventView, RunSummary

__all__ = ["EndLine", "EventLine"]


class EventLine(TypedDict):
    """Something happened to the run."""

    event: EventView


class EndLine(TypedDict):
    """The run is over; nothing follows."""

    end: RunSummary
