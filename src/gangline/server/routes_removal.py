"""Calls that free room: what a run takes, its removal, and code that no run uses any more."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.wire.removed import FreedView, RemovedView, RunSizeView

__all__ = ["make_router"]


def make_router(parts: Parts) -> APIRouter:
    """`/runs/{run}/size`, `DELETE /runs/{run}` and `/objects/free`."""
    router = APIRouter(tags=["removal"])

    @router.get("/runs/{run}/size", response_model=RunSizeView)
    def measure_run(run: str) -> Response:
        """What removing it would remove."""
        return json_answer(parts.commands.measure(parts.commands.find(run)))

    @router.delete("/runs/{run}", response_model=RemovedView)
    def remove_run(
        run: str,
        keep_checkpoints: Annotated[bool, Query(description="Move them to `kept/` in the state folder.")] = False,  # noqa: FBT002 - of a query
    ) -> Response:
        """Remove a run that is over, with its folder. It takes the whole id, not the beginning of one."""
        return json_answer(parts.commands.remove(run, keep_checkpoints=keep_checkpoints))

    @router.post("/objects/free", response_model=FreedView)
    def free_objects() -> Response:
        """Remove contents of code that no run uses any more."""
        return json_answer(parts.commands.free())

    return router
