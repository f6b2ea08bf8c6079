"""Calls about where the ranks of a run are."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gangline.control.requests import ask_stacks
from gangline.control.stacks import find_answer, newest_answer
from gangline.domain.errors import Conflict, NoAnswer, NotFound
from gangline.domain.phase import TERMINAL, Phase
from gangline.server.answers import MOST, json_answer
from gangline.server.parts import Parts
from gangline.wire.views import StacksView

__all__ = ["StacksBody", "make_router"]

_POLL_S = 0.02
_MOST_RANKS = 10_000


class StacksBody(BaseModel):
    """Whose stacks to take, and how long to wait for them."""

    model_config = ConfigDict(extra="forbid")

    ranks: list[Annotated[int, Field(ge=0, le=MOST)]] | None = Field(
        default=None, max_length=_MOST_RANKS, description="null: all."
    )
    native: bool = Field(default=False, description="With C++ frames, where py-spy is installed where ranks run.")
    timeout_s: float = Field(default=15.0, gt=0, le=50, allow_inf_nan=False)


def make_router(parts: Parts) -> APIRouter:
    """Everything under `/runs/{run}/stacks`."""
    router = APIRouter(tags=["stacks"])

    @router.post("/runs/{run}/stacks", response_model=StacksView)
    async def take_stacks(run: str, body: StacksBody) -> Response:
        """Take the stacks of the ranks that run now."""
        run_id, name = await run_in_threadpool(_ask, parts, run, body)
        deadline = time.monotonic() + body.timeout_s
        while (found := await run_in_threadpool(find_answer, parts.home.run(run_id), name)) is None:
            if time.monotonic() > deadline or not await parts.stopping.pause(_POLL_S):
                raise _no_answer(parts, run_id, body.timeout_s)
        return json_answer(found)

    @router.get("/runs/{run}/stacks", response_model=StacksView)
    def last_stacks(
        run: str, attempt: Annotated[int | None, Query(ge=0, le=MOST, description="Default: the newest.")] = None
    ) -> Response:
        """The newest stacks that were taken, by somebody or by the watchdog."""
        return json_answer(newest_answer(parts.home.run(parts.commands.find(run)), attempt=attempt))

    return router


def _ask(parts: Parts, run: str, body: StacksBody) -> tuple[str, str]:
    """Hand the request to the leader; the run's id and the request's."""
    run_id = parts.commands.find(run)
    seen = parts.commands.summary(run_id)
    if Phase(seen["phase"]) in TERMINAL:
        fix = f"`gangline stacks {run_id} --last` shows the newest that were taken."
        raise Conflict(f"Run `{run_id}` is over: no rank of it runs", fix=fix)
    if seen["attempt"] is None and not parts.home.run(run_id).attempts():  # files know it before the store does
        raise Conflict(f"Run `{run_id}` has not started: it is {seen['phase']}", fix="Try again when its ranks run.")
    num_ranks = seen["nodes"] * seen["procs_per_node"]
    wrong = [rank for rank in body.ranks or () if rank >= num_ranks]
    if wrong:
        raise NotFound(f"Run `{run_id}` has no rank {wrong[0]}", fix=f"Ranks: 0 to {num_ranks - 1}.")
    name = ask_stacks(parts.home.run(run_id), ranks=body.ranks, native=body.native, by=parts.owner)
    return run_id, name


def _no_answer(parts: Parts, run_id: str, timeout_s: float) -> NoAnswer:
    trouble = parts.pools.trouble(parts.commands.summary(run_id)["pool"])
    return NoAnswer(
        f"The leader of run `{run_id}` did not answer within {timeout_s:g} s",
        why=trouble.removesuffix(".") or "Its agent is dead, frozen, or about to start or end an attempt",
        fix=f"`gangline show {run_id}` tells how it stands; `gangline stacks {run_id} --last` shows older stacks.",
    )
