"""Calls about the server itself: health, stop."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from gangline.domain.version import VERSION
from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.wire.views import HealthView

__all__ = ["make_router"]


def make_router(parts: Parts) -> APIRouter:
    """`/health` and `/server/stop`."""
    router = APIRouter(tags=["server"])

    @router.get("/health", response_model=HealthView)
    def health() -> Response:
        """Who answers, and how much it has to do."""
        return json_answer(_health(parts))

    @router.post("/server/stop", status_code=202)
    def stop_server() -> Response:
        """End the server; gangs go on without it."""
        parts.stopping.begin()
        return json_answer({"stopping": True}, status=202)

    return router


def _health(parts: Parts) -> HealthView:
    live, queued = parts.commands.counts()
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "started": parts.started,
        "home": str(parts.home.path),
        "runs_live": live,
        "runs_queued": queued,
        "rss_bytes": _rss_bytes(),
        "warnings": [*parts.warnings, *filter(None, [parts.trouble(), parts.pools.file()["fault"]])],
    }


def _rss_bytes() -> int | None:
    """Resident memory now; where the system does not say, the most it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource.getpagesize()
