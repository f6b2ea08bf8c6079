"""Calls about machines: what the agents of a run have sampled of theirs, and which are avoided."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from gangline.control.system import MOST_SAMPLES
from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.wire.views import ClearedView, NodeHealthView, SystemView

__all__ = ["make_router"]

_MOST = 2**31 - 1


class ClearBody(BaseModel):
    """Body of `POST /pools/nodes/clear`."""

    model_config = ConfigDict(extra="forbid")

    node: str
    pool: str | None = None
    """None: in every pool."""


def make_router(parts: Parts) -> APIRouter:
    """`/runs/{run}/system` and `/pools/nodes`."""
    router = APIRouter(tags=["machines"])

    @router.get("/runs/{run}/system", response_model=list[SystemView])
    def show_system(
        run: str,
        attempt: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
        samples: Annotated[int, Query(ge=1, le=MOST_SAMPLES)] = 1,
    ) -> Response:
        """The newest samples of each node of an attempt; default: the newest attempt."""
        return json_answer(parts.commands.system(parts.commands.find(run), attempt=attempt, samples=samples))

    @router.get("/pools/nodes", response_model=list[NodeHealthView])
    def list_nodes(pool: str | None = None) -> Response:
        """The machines that are known by name, and what speaks against them; default: of all pools."""
        return json_answer(parts.commands.nodes(pool))

    @router.post("/pools/nodes/clear", response_model=ClearedView)
    def clear_node(body: ClearBody) -> Response:
        """Count nothing against a machine that happened so far."""
        return json_answer(parts.commands.clear_node(body.node, pool=body.pool, by=parts.owner))

    return router
