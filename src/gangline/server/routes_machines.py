"""Calls about machines: what the agents of a run have sampled of theirs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gangline.control.system import MOST_SAMPLES
from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.wire.views import SystemView

__all__ = ["make_router"]

_MOST = 2**31 - 1


def make_router(parts: Parts) -> APIRouter:
    """`/runs/{run}/system`."""
    router = APIRouter(tags=["machines"])

    @router.get("/runs/{run}/system", response_model=list[SystemView])
    def show_system(
        run: str,
        attempt: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
        samples: Annotated[int, Query(ge=1, le=MOST_SAMPLES)] = 1,
    ) -> Response:
        """The newest samples of each node of an attempt; default: the newest attempt."""
        return json_answer(parts.commands.system(parts.commands.find(run), attempt=attempt, samples=samples))

    return router
