"""Calls that look at runs as a whole: compared with one another, the workers of one, a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from gangline.control.reporting import ReportFile
from gangline.server.answers import MOST, json_answer
from gangline.server.parts import Parts
from gangline.wire.compared import CompareView, RanksView

__all__ = ["make_router"]

_REPORTS_AT_ONCE = 2
"""Reports take seconds; in threads of their own they never take those that short calls wait for."""
_PIECE_BYTES = 1 << 20
_MEDIA = {"html": "text/html; charset=utf-8", "zip": "application/zip"}


def make_router(parts: Parts) -> APIRouter:
    """`/compare`, `/runs/{run}/ranks` and `/runs/{run}/report`."""
    router = APIRouter(tags=["runs"])
    reports = CapacityLimiter(_REPORTS_AT_ONCE)

    @router.get("/compare", response_model=CompareView)
    def compare_runs(
        run: Annotated[list[str], Query(description="Two or more runs; the others are compared with the first.")],
        code: Annotated[bool, Query(description="With the differences of each file, line by line.")] = False,  # noqa: FBT002 - of a query
    ) -> Response:
        """What differs between runs."""
        return json_answer(parts.commands.compare([parts.commands.find(word) for word in run], code=code))

    @router.get("/runs/{run}/ranks", response_model=RanksView)
    def compare_ranks(
        run: str, attempt: Annotated[int | None, Query(ge=0, le=MOST, description="Default: the newest.")] = None
    ) -> Response:
        """What differs between the workers of a run."""
        return json_answer(parts.commands.compare_ranks(parts.commands.find(run), attempt=attempt))

    @router.get("/runs/{run}/report", response_class=Response)
    async def report_run(
        run: str, form: Annotated[str, Query(description="`html`: one page; `zip`: with the logs beside it.")] = "html"
    ) -> Response:
        """All that is known of a run as one file, without its secrets; `X-Gangline-Removed` counts them."""

        def make() -> ReportFile:
            return parts.commands.report(parts.commands.find(run), form=form)

        made = await to_thread.run_sync(make, limiter=reports)
        headers = {"X-Gangline-Removed": str(made.removed), "Content-Length": str(made.size_bytes)}
        return StreamingResponse(_pieces(made.file), media_type=_MEDIA[form], headers=headers)

    return router


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """A file to its end, in pieces; then it is closed."""
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
