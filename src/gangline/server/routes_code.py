"""Calls about code: contents by digest, and the manifests that make trees of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio.from_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from gangline.domain.errors import InvalidRequest, SnapshotRefused
from gangline.server.answers import json_answer
from gangline.server.parts import Parts
from gangline.snapshot.manifest import Manifest, is_digest
from gangline.snapshot.objects import read_chunks

__all__ = ["MissingBody", "make_router", "parse_contents"]

_MAX_BATCH_BYTES = 64 * 1024 * 1024


class MissingBody(BaseModel):
    """Digests to look for."""

    model_config = ConfigDict(extra="forbid")

    digests: list[str]


def make_router(parts: Parts) -> APIRouter:
    """`/objects` and `/snapshots`."""
    router = APIRouter(tags=["code"])
    _add_uploads(router, parts)
    _add_downloads(router, parts)
    return router


def _add_uploads(router: APIRouter, parts: Parts) -> None:
    @router.post("/objects/missing")
    def find_missing(body: MissingBody) -> dict[str, list[str]]:
        """Those contents that are not here: `{"missing": [digest, …]}`."""
        return {"missing": parts.objects.missing(map(_checked_digest, body.digests))}

    @router.put("/objects/{digest}")
    async def put_object(digest: str, request: Request) -> dict[str, int]:
        """One content, as raw bytes of any size: `{"stored": 0 or 1}`."""
        stream = request.stream()
        stored = await run_in_threadpool(parts.objects.put_bytes, _checked_digest(digest), _pulled(stream))
        async for _ in stream:
            pass  # it was here already: the client may finish what it sends
        return {"stored": int(stored)}

    @router.post("/objects")
    async def put_objects(request: Request) -> dict[str, int]:
        """Several contents: repeated digest, newline, size, newline, bytes: `{"stored": number}`."""
        if int(request.headers.get("content-length", _MAX_BATCH_BYTES + 1)) > _MAX_BATCH_BYTES:
            raise InvalidRequest(
                "The batch is too large", fix=f"Send at most {_MAX_BATCH_BYTES} bytes with their length."
            )
        body = await request.body()
        return {"stored": await run_in_threadpool(_store_all, parts, body)}

    @router.post("/snapshots")
    def put_snapshot(manifest: dict[str, Any]) -> dict[str, str]:
        """A manifest whose contents are all here: `{"digest": …}`."""
        found = Manifest.from_dict(manifest)
        missing = parts.objects.missing(found.digests())
        if missing:
            raise SnapshotRefused(
                f"{len(missing)} contents of the snapshot are not here",
                why=f"The first is {missing[0]}.",
                fix="Submit again.",
            )
        return {"digest": parts.objects.put_manifest(found)}


def _add_downloads(router: APIRouter, parts: Parts) -> None:
    @router.get("/snapshots/{digest}")
    def get_snapshot(digest: str) -> Response:
        """A manifest."""
        return json_answer(parts.objects.get_manifest(_checked_digest(digest)).to_dict())

    @router.get("/objects/{digest}", response_class=StreamingResponse)
    def get_object(digest: str) -> Response:
        """One content, as raw bytes."""
        file = parts.objects.open(_checked_digest(digest))

        def chunks() -> Iterator[bytes]:
            with file:
                yield from read_chunks(file)

        return StreamingResponse(chunks(), media_type="application/octet-stream")


def parse_contents(body: bytes) -> Iterator[tuple[str, memoryview]]:
    """The contents of a batch.

    Raises:
        InvalidRequest: it is cut off, or not in that form.
    """
    view, at = memoryview(body), 0
    while at < len(body):
        head_end = body.find(b"\n", body.find(b"\n", at) + 1)
        digest, _, size = body[at : max(head_end, at)].partition(b"\n")
        if head_end < 0 or not size.isdigit():
            raise InvalidRequest("The batch of contents cannot be read", why=f"Byte {at} begins no digest and size.")
        start, end = head_end + 1, head_end + 1 + int(size)
        if end > len(body):
            raise InvalidRequest("The batch of contents is cut off", why=f"It has {len(body)} of {end} bytes.")
        yield digest.decode("ascii", "replace"), view[start:end]
        at = end


def _store_all(parts: Parts, body: bytes) -> int:
    return sum(parts.objects.put_bytes(_checked_digest(digest), [bytes(data)]) for digest, data in parse_contents(body))


def _pulled(stream: AsyncIterator[bytes]) -> Iterator[bytes]:
    """A request's body for code that runs in a worker thread; read only as fast as it is stored."""

    async def next_chunk() -> bytes | None:
        return await anext(stream, None)

    while (chunk := anyio.from_thread.run(next_chunk)) is not None:
        yield chunk


def _checked_digest(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidRequest(f"`{digest[:100]}` is not a digest", fix="It is 64 hexadecimal digits in lower case.")
    return digest
