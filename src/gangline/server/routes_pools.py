"""Calls about pools: which there are, how each stands, adding, removing and examining them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gangline.server.answers import MOST, json_answer
from gangline.server.parts import Parts
from gangline.wire.views import FindingView, PoolDetail, PoolFileView, PoolJobView, PoolView

__all__ = ["make_router"]


class AddPoolBody(BaseModel):
    """Body of `POST /pools`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    settings: dict[str, Any] = Field(description="As in pools.yaml; see docs/reference/pools.md.")


class ExamineBody(BaseModel):
    """Body of `POST /pools/{pool}/examine`."""

    model_config = ConfigDict(extra="forbid")

    deep: bool = Field(default=False, description="Also run a tiny job on a node, which may have to wait for one.")


def make_router(parts: Parts) -> APIRouter:
    """Everything under `/pools` but nodes."""
    router = APIRouter(tags=["pools"])

    @router.get("/pools", response_model=list[PoolView])
    def list_pools() -> Response:
        """The machines that runs can use."""
        return json_answer(parts.commands.pools())

    @router.post("/pools", status_code=201, response_model=PoolDetail)
    def add_pool(body: AddPoolBody) -> Response:
        """Write a pool into pools.yaml, and serve it."""
        return json_answer(parts.pools.add(body.name, body.settings), status=201)

    @router.get("/pools/file", response_model=PoolFileView)
    def show_file() -> Response:
        """Where the file is, and what is wrong with it."""
        return json_answer(parts.pools.file())

    @router.get("/pools/{pool}", response_model=PoolDetail)
    def show_pool(pool: str) -> Response:
        """One pool with its settings."""
        return json_answer(parts.pools.show(pool))

    @router.delete("/pools/{pool}", response_model=PoolFileView)
    def remove_pool(pool: str) -> Response:
        """Take a pool out of pools.yaml; it serves the runs that it has."""
        return json_answer(parts.pools.remove(pool))

    @router.post("/pools/{pool}/examine", response_model=list[FindingView])
    def examine_pool(pool: str, body: ExamineBody) -> Response:
        """Look at everything that the pool needs: connection, commands, folders, limits."""
        return json_answer(parts.pools.examine(pool, deep=body.deep))

    @router.get("/pools/{pool}/jobs", response_model=list[PoolJobView])
    def list_jobs(pool: str, quiet_s: Annotated[float, Query(gt=0, le=MOST)] = 1800.0) -> Response:
        """What the pool's own queue holds for this server, and how each job stands to our runs."""
        return json_answer(parts.pools.jobs(pool, quiet_s=quiet_s))

    @router.post("/pools/{pool}/jobs/end", response_model=list[PoolJobView])
    def end_zombies(pool: str) -> Response:
        """End the jobs that no run counts on, and those on which nothing of ours lives."""
        return json_answer(parts.pools.jobs(pool, quiet_s=MOST, end_zombies=True))

    return router
