"""Calls about what the ranks of a run wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gangline.domain.errors import InvalidRequest, NotFound
from gangline.domain.phase import TERMINAL, Phase
from gangline.rundir.layout import AttemptDir
from gangline.rundir.tail import read_kept
from gangline.server.answers import MOST, encode, json_answer
from gangline.server.follow import RunFollower, follow_lines
from gangline.server.logs import GangLogFollower, find_attempt, is_attempt_over, parse_offsets
from gangline.server.parts import Parts
from gangline.server.ranklogs import Begin, RankLogs, find_begin, find_end, read_piece
from gangline.server.search import LogSearch, SearchQuery
from gangline.wire.views import LogChunk, RunSummary

__all__ = ["make_router"]

_MAX_CHUNK_BYTES = 16 << 20
_LINES = "application/x-ndjson"
_Attempt = Annotated[int | None, Query(ge=0, le=MOST, description="Default: the newest.")]
_Tail = Annotated[int | None, Query(ge=0, le=MOST, description="Begin at the last that many lines.")]
_Ranks = Annotated[str | None, Query(description="`0,3`; default: all.")]
_Since = Annotated[float | None, Query(description="Begin at what was written from this time on (seconds since 1970).")]
_Until = Annotated[float | None, Query(description="End at what was written up to this time.")]


def make_router(parts: Parts) -> APIRouter:
    """Everything under `/runs/{run}/logs`, and `/runs/{run}/follow`."""
    router = APIRouter(tags=["logs"])
    _add_pieces(router, parts)
    _add_follow(router, parts)
    _add_search(router, parts)
    return router


def _add_pieces(router: APIRouter, parts: Parts) -> None:
    @router.get("/runs/{run}/logs/{rank}", response_model=LogChunk)
    def read_log(
        run: str,
        rank: int,
        attempt: _Attempt = None,
        offset: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit_bytes: Annotated[int, Query(ge=16, le=_MAX_CHUNK_BYTES)] = 1 << 20,
        tail: _Tail = None,
    ) -> Response:
        """A piece of one rank's log. Where its middle was dropped, one piece says so, and the next goes on after it."""
        found, over = _find(parts, run, [rank], attempt)
        if tail is not None:
            offset = find_begin(found, rank, Begin(tail=tail))
        return json_answer(read_piece(found, rank, offset=offset, limit_bytes=limit_bytes, over=over))

    @router.get("/runs/{run}/logs/{rank}/raw", response_class=StreamingResponse)
    def read_raw_log(
        run: str, rank: int, attempt: _Attempt = None, since: _Since = None, until: _Until = None
    ) -> Response:
        """The bytes of one rank's log as they are now; a line says where its middle was dropped."""
        found, _ = _find(parts, run, [rank], attempt)
        begin, end = find_begin(found, rank, Begin(since=since)), find_end(found, rank, until)
        return StreamingResponse(read_kept(found.log(rank), begin, end), media_type="application/octet-stream")

    @router.get("/runs/{run}/logs", responses={200: {"content": {_LINES: {}}}}, response_class=StreamingResponse)
    async def read_logs(
        run: str,
        ranks: _Ranks = None,
        attempt: _Attempt = None,
        tail: _Tail = None,
        since: _Since = None,
        until: _Until = None,
    ) -> Response:
        """Lines of JSON: LogChunks of several ranks in order of time, as the logs are now."""
        begin = Begin(tail=tail, since=since)
        logs, over = await run_in_threadpool(_open_logs, parts, run, ranks, attempt, begin, until)
        return StreamingResponse(_merged(logs, over=over), media_type=_LINES)


def _add_follow(router: APIRouter, parts: Parts) -> None:
    @router.get("/runs/{run}/follow", responses={200: {"content": {_LINES: {}}}}, response_class=StreamingResponse)
    async def follow_run(
        run: str,
        ranks: _Ranks = None,
        attempt: Annotated[int | None, Query(ge=0, le=MOST, description="Where to begin; default: the newest.")] = None,
        offsets: Annotated[str, Query(description="`0:17,3:0`: next byte of each rank in that attempt.")] = "",
        tail: _Tail = None,
        since: _Since = None,
        after: Annotated[int, Query(ge=-MOST, le=MOST, description="`seq` of the last event that is known.")] = -1,
    ) -> Response:
        """Lines of JSON: LogChunks, `{"event": EventView}`, `{"waits": text}`, and at the end `{"end": RunSummary}`."""
        run_id, seen = await run_in_threadpool(_summary, parts, run)
        logs = GangLogFollower(
            run_dir=parts.home.run(run_id),
            ranks=_parse_ranks(ranks, seen),
            attempt=attempt,
            offsets=_parse_offsets(offsets),
            begin=Begin(tail=tail, since=since),
        )
        follower = RunFollower(run_id=run_id, runs=parts.commands, logs=logs, after=after, trouble=parts.trouble)
        return StreamingResponse(follow_lines(follower, parts.stopping), media_type=_LINES)


def _add_search(router: APIRouter, parts: Parts) -> None:
    @router.get("/runs/{run}/search", responses={200: {"content": {_LINES: {}}}}, response_class=StreamingResponse)
    async def search_logs(
        run: str,
        query: Annotated[SearchQuery, Depends(_read_query)],
        ranks: _Ranks = None,
        attempt: Annotated[int | None, Query(ge=0, le=MOST, description="Default: all.")] = None,
    ) -> Response:
        """Lines of JSON: LogHits by attempt, rank and offset, and at the end a SearchEnd."""
        search = await run_in_threadpool(_open_search, parts, run, ranks, attempt, query)
        return StreamingResponse(_hits(search), media_type=_LINES)


def _read_query(
    pattern: Annotated[str, Query(max_length=10_000, description="Regular expression in ripgrep's syntax.")],
    ignore_case: Annotated[bool, Query()] = False,  # noqa: FBT002 - a parameter of the call
    fixed: Annotated[bool, Query(description="The pattern is plain text.")] = False,  # noqa: FBT002
    context: Annotated[int, Query(ge=0, le=100, description="Lines around each hit.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Most hits.")] = 1000,
    since: _Since = None,
    until: _Until = None,
) -> SearchQuery:
    return SearchQuery(
        pattern=pattern,
        ignore_case=ignore_case,
        fixed=fixed,
        context=context,
        limit=limit,
        since=since,
        until=until,
    )


def _open_search(parts: Parts, run: str, ranks: str | None, attempt: int | None, query: SearchQuery) -> LogSearch:
    run_id, seen = _summary(parts, run)
    wanted = _parse_ranks(ranks, seen)
    run_dir = parts.home.run(run_id)
    attempts = run_dir.attempts() if attempt is None else [_find(parts, run_id, wanted, attempt)[0]]
    search = LogSearch([(found, rank) for found in attempts for rank in wanted], query)
    search.check()
    return search


async def _hits(search: LogSearch) -> AsyncIterator[bytes]:
    batches = search.batches()
    try:
        while (batch := await to_thread.run_sync(next, batches, None, abandon_on_cancel=True)) is not None:
            yield b"".join(encode(item) + b"\n" for item in batch)
    finally:
        search.close()


def _summary(parts: Parts, run: str) -> tuple[str, RunSummary]:
    run_id = parts.commands.find(run)
    return run_id, parts.commands.summary(run_id)


def _open_logs(
    parts: Parts, run: str, ranks: str | None, attempt: int | None, begin: Begin, until: float | None
) -> tuple[RankLogs, bool]:
    run_id, seen = _summary(parts, run)
    wanted = _parse_ranks(ranks, seen)
    found, over = _find(parts, run_id, wanted, attempt)
    ends = {rank: find_end(found, rank, until) for rank in wanted}
    return RankLogs(attempt=found, ranks=wanted, begin=begin, ends=ends), over


async def _merged(logs: RankLogs, *, over: bool) -> AsyncIterator[bytes]:
    while pieces := await run_in_threadpool(logs.read, over=over):
        yield b"".join(encode(piece) + b"\n" for piece in pieces)


def _find(parts: Parts, run: str, ranks: Sequence[int], attempt: int | None) -> tuple[AttemptDir, bool]:
    """The attempt that is meant, and whether nothing more will be written to its logs.

    Raises:
        NotFound: the run has no such rank or attempt.
    """
    run_id, seen = _summary(parts, run)
    _check_ranks(ranks, seen)
    run_dir = parts.home.run(run_id)
    newest = find_attempt(run_dir, None).number
    if attempt is not None and attempt > newest:
        raise NotFound(f"Run `{run_id}` has no attempt {attempt}", fix=f"Attempts: 0 to {newest}.")
    found = find_attempt(run_dir, attempt)
    over = Phase(seen["phase"]) in TERMINAL or found.number < newest or is_attempt_over(found)
    return found, over


def _parse_ranks(text: str | None, seen: RunSummary) -> Sequence[int]:
    if not text:
        return range(_num_ranks(seen))
    try:
        ranks = sorted({int(rank) for rank in text.split(",")})
    except ValueError:
        raise InvalidRequest(f"`ranks` is `{text[:100]}`", fix="Write numbers with commas: 0,3.") from None
    _check_ranks(ranks, seen)
    return ranks


def _parse_offsets(text: str) -> dict[int, int]:
    try:
        offsets: dict[int, int] | None = dict(parse_offsets(text))
    except ValueError:
        offsets = None
    if offsets is None or any(max(pair) > MOST for pair in offsets.items()):
        raise InvalidRequest(f"`offsets` is `{text[:100]}`", fix="Write rank:offset pairs with commas: 0:17,3:0.")
    return offsets


def _check_ranks(ranks: Sequence[int], seen: RunSummary) -> None:
    num_ranks = _num_ranks(seen)
    wrong = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if wrong:
        raise NotFound(f"Run `{seen['id']}` has no rank {wrong[0]}", fix=f"Ranks: 0 to {num_ranks - 1}.")


def _num_ranks(seen: RunSummary) -> int:
    return seen["nodes"] * seen["procs_per_node"]
