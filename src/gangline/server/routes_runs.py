"""Calls about runs: submit, list, look, wait, stop, resume, and what they left behind."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gangline.control.again import ResumeRequest
from gangline.domain.errors import InvalidRequest, nearest
from gangline.domain.phase import TERMINAL, Phase
from gangline.server.answers import MOST, json_answer
from gangline.server.parts import Parts
from gangline.wire.spec import spec_from_mapping
from gangline.wire.views import CheckpointView, EventView, MetricView, RunDetail, RunSummary

__all__ = ["ResumeBody", "StopBody", "SubmitBody", "make_router"]

_EVERY_RUN = 1_000_000_000
_POLL_S = 0.05
_MAX_WAIT_S = 300.0
_MAX_BUCKETS = 10_000
_LEAST_LEASE_S = 1.0


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _lease(text: str) -> Any:
    return Field(default=None, ge=_LEAST_LEASE_S, allow_inf_nan=False, description=text)


class SubmitBody(_Body):
    """A run to create, or to check."""

    spec: dict[str, Any] = Field(description="The run spec; see docs/reference/spec.md.")
    client: dict[str, Any] = Field(default={}, description="Who submits: user, host, folder, command line.")
    key: str = Field(default="", max_length=200, description="Idempotency key: twice the same gives one run.")
    lease_s: float | None = _lease("How long the run goes on when nobody renews; null: it needs nobody.")


class StopBody(_Body):
    """How to stop."""

    grace_s: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="null: the spec's own.")


class ResumeBody(_Body):
    """Where the run goes on, and what is other from now on."""

    checkpoint: str | None = Field(
        default=None,
        min_length=1,
        description="A step, `latest`, a checkpoint's folder, `RUN:STEP` or `RUN:latest`; null: the newest.",
    )
    changes: dict[str, Any] = Field(
        default={}, description="Keys of the spec with other values: sizes, restarts, time limits, priority."
    )
    lease_s: float | None = _lease("A new lease; null: the run needs nobody from now on.")


def make_router(parts: Parts) -> APIRouter:
    """Everything under `/runs` but logs."""
    router = APIRouter(tags=["runs"])
    _add_submit(router, parts)
    _add_list(router, parts)
    _add_moves(router, parts)
    _add_history(router, parts)
    return router


def _add_submit(router: APIRouter, parts: Parts) -> None:
    @router.post("/runs", status_code=201, response_model=RunDetail)
    def submit_run(body: SubmitBody) -> Response:
        """Create a run. Everything is checked before anything is stored."""
        if not body.key:
            raise InvalidRequest(
                "The request has no `key`", fix="Send a random text that stays the same when you retry."
            )
        spec = spec_from_mapping(body.spec)
        made = parts.commands.submit(spec, client=body.client, key=body.key, lease_s=body.lease_s)
        return json_answer(made, status=201)

    @router.post("/runs/check")
    def check_run(body: SubmitBody) -> dict[str, Any]:
        """What the backend would be given: `{"launch": …}`. Nothing is stored."""
        launch = parts.commands.check(spec_from_mapping(body.spec))
        return {"launch": dataclasses.asdict(launch)}


def _add_list(router: APIRouter, parts: Parts) -> None:
    @router.get("/runs", response_model=list[RunSummary])
    def list_runs(
        phase: Annotated[list[str] | None, Query(description="Only these phases.")] = None,
        name: Annotated[str | None, Query(description="Only names that contain this.")] = None,
        project: str | None = None,
        label: Annotated[list[str] | None, Query(description="K=V: only runs with this label.")] = None,
        limit: Annotated[int, Query(ge=0, le=_EVERY_RUN, description="0: every run.")] = 100,
    ) -> Response:
        """Runs, newest first."""
        most = limit or _EVERY_RUN
        phases: list[str | None] = [*map(_checked_phase, phase)] if phase else [None]
        labels = _checked_labels(label or [])
        found = [
            run
            for one in phases
            for run in parts.commands.list_runs(phase=one, name=name, project=project, labels=labels, limit=most)
        ]
        if len(phases) > 1:
            found = sorted(found, key=lambda run: run["created"], reverse=True)[:most]
        return json_answer(found)

    @router.get("/runs/{run}", response_model=RunDetail)
    def show_run(run: str) -> Response:
        """All that is known of a run."""
        return json_answer(parts.commands.detail(parts.commands.find(run)))

    @router.get("/runs/{run}/wait", response_model=RunSummary)
    async def wait_for_run(
        run: str,
        timeout_s: Annotated[float, Query(ge=0, le=_MAX_WAIT_S, allow_inf_nan=False)] = 30.0,
        version: Annotated[int | None, Query(ge=-MOST, le=MOST)] = None,
    ) -> Response:
        """The run as soon as its version is another one, it is over, or the time has passed."""
        run_id = await run_in_threadpool(parts.commands.find, run)
        known: object = None
        while True:
            now = parts.commands.version()
            if now != known:
                seen, known = await run_in_threadpool(parts.commands.summary, run_id), now
            timeout_s -= _POLL_S
            if seen["version"] != version or Phase(seen["phase"]) in TERMINAL or timeout_s <= 0:
                return json_answer(seen)
            if not await parts.stopping.pause(_POLL_S):
                return json_answer(seen)


def _add_moves(router: APIRouter, parts: Parts) -> None:
    @router.post("/runs/{run}/stop", response_model=RunSummary)
    def stop_run(run: str, body: StopBody) -> Response:
        """Ask a run to stop."""
        run_id = parts.commands.find(run)
        return json_answer(parts.commands.stop(run_id, grace_s=body.grace_s, by=parts.owner))

    @router.post("/runs/{run}/renew", response_model=RunSummary)
    def renew_lease(run: str) -> Response:
        """Say that a run with a lease is still wanted."""
        return json_answer(parts.commands.renew(parts.commands.find(run)))

    @router.post("/runs/{run}/resume", response_model=RunSummary)
    def resume_run(run: str, body: ResumeBody) -> Response:
        """Queue a run that failed or was stopped once more."""
        request = ResumeRequest(checkpoint=body.checkpoint, changes=body.changes, lease_s=body.lease_s)
        return json_answer(parts.commands.resume(parts.commands.find(run), request, by=parts.owner))


def _add_history(router: APIRouter, parts: Parts) -> None:
    @router.get("/runs/{run}/events", response_model=list[EventView])
    def list_events(run: str, after: Annotated[int, Query(ge=-MOST, le=MOST)] = -1) -> Response:
        """What happened, after the entry with that `seq`."""
        return json_answer(parts.commands.events(parts.commands.find(run), after=after))

    @router.get("/runs/{run}/checkpoints", response_model=list[CheckpointView])
    def list_checkpoints(run: str) -> Response:
        """Checkpoints, by step, each with its state; the one that a resume would take is the latest."""
        return json_answer(parts.commands.checkpoints(parts.commands.find(run)))

    @router.get("/runs/{run}/metrics", response_model=dict[str, float | None])
    def list_metrics(run: str) -> Response:
        """Newest value of every metric of rank 0."""
        return json_answer(parts.commands.metrics(parts.commands.find(run)))

    @router.get("/runs/{run}/metrics/{name:path}", response_model=MetricView)
    def show_metric(
        run: str,
        name: str,
        rank: Annotated[int, Query(ge=0, le=MOST)] = 0,
        buckets: Annotated[int, Query(ge=1, le=_MAX_BUCKETS)] = 200,
    ) -> Response:
        """One metric, in at most that many buckets."""
        return json_answer(parts.commands.metric(parts.commands.find(run), name, rank=rank, buckets=buckets))


def _checked_labels(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if not pair.partition("=")[0].strip() or "=" not in pair), None)
    if wrong is not None:
        raise InvalidRequest(f"`{wrong}` is no label", why="It takes K=V.", fix="For example: team=nlp")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _checked_phase(phase: str) -> str:
    names = [known.value for known in Phase]
    if phase not in names:
        raise InvalidRequest(f"There is no phase `{phase}`", fix=nearest(phase, names))
    return phase
