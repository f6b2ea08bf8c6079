"""Calls that make a run from another one: `rerun` and `debug`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gangline.control.again import DebugRequest, RerunRequest
from gangline.domain.errors import InvalidRequest
from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.wire.views import RunDetail

__all__ = ["DebugBody", "RerunBody", "make_router"]

_MOST_RANKS = 10_000


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    client: dict[str, Any] = Field(default={}, description="Who asks: user, host, folder, command line.")
    key: str = Field(default="", max_length=200, description="Idempotency key: twice the same gives one run.")


class RerunBody(_Body):
    """What is other than in the run that is repeated."""

    changes: dict[str, Any] = Field(default={}, description="Keys of the spec with other values.")
    args: list[str] | None = Field(default=None, description="Arguments of the entry point; null: the same.")


class DebugBody(_Body):
    """The smaller world, and how it is looked at."""

    nodes: int = Field(default=1, ge=1, le=_MOST_RANKS)
    procs_per_node: int | None = Field(default=None, ge=1, le=_MOST_RANKS, description="null: two, if it had as many.")
    checkpoint: str | None = Field(
        default=None, min_length=1, description="As for resume; null: where the run would go on."
    )
    fresh: bool = Field(default=False, description="Start from the beginning instead.")
    pdb: bool = Field(default=False, description="One rank waits for a person in a debugger.")
    rank: int | None = Field(default=None, ge=0, description="Which one; null: the one that failed first.")


def make_router(parts: Parts) -> APIRouter:
    """`/runs/{run}/rerun` and `/runs/{run}/debug`."""
    router = APIRouter(tags=["runs"])

    @router.post("/runs/{run}/rerun", status_code=201, response_model=RunDetail)
    def rerun_run(run: str, body: RerunBody) -> Response:
        """Create a run with the spec and the code of another one. It starts afresh."""
        _need_key(body)
        request = RerunRequest(changes=body.changes, args=body.args)
        run_id = parts.commands.find(run)
        return json_answer(parts.commands.rerun(run_id, request, client=body.client, key=body.key), status=201)

    @router.post("/runs/{run}/debug", status_code=201, response_model=RunDetail)
    def debug_run(run: str, body: DebugBody) -> Response:
        """Create a run that repeats another one in a smaller world, from where that one would go on."""
        _need_key(body)
        if body.fresh and body.checkpoint is not None:
            raise InvalidRequest("`fresh` contradicts `checkpoint`", fix="Keep one of them.")
        request = DebugRequest(**body.model_dump(exclude={"client", "key"}))
        run_id = parts.commands.find(run)
        return json_answer(parts.commands.debug(run_id, request, client=body.client, key=body.key), status=201)

    return router


def _need_key(body: _Body) -> None:
    if not body.key:
        raise InvalidRequest("The request has no `key`", fix="Send a random text that stays the same when you retry.")
