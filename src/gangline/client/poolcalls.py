"""The calls about pools and machines; `Client` has them as its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from gangline.client.http import httpx

if TYPE_CHECKING:
    from gangline.wire.views import (
        ClearedView,
        FindingView,
        NodeHealthView,
        PoolDetail,
        PoolFileView,
        PoolJobView,
        PoolView,
    )

__all__ = ["PoolCalls", "quote_part"]

_EXAMINE = httpx.Timeout(10.0, read=420.0)


def quote_part(text: str) -> str:
    """Text as one part of a path; dots too are escaped, as `..` would climb."""
    return quote(text, safe="").replace(".", "%2E")


class PoolCalls:
    """What `Client` does about pools; its transport comes from there."""

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        raise NotImplementedError

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        timeout: httpx.Timeout | None = None,
        retry: bool = True,
    ) -> httpx.Response:
        raise NotImplementedError

    def pools(self) -> list[PoolView]:
        return cast("list[PoolView]", self._get("/pools"))

    def pool_file(self) -> PoolFileView:
        """Where the server's pools are configured, and what is wrong there."""
        return cast("PoolFileView", self._get("/pools/file"))

    def pool(self, name: str) -> PoolDetail:
        """One pool with its settings."""
        return cast("PoolDetail", self._get(f"/pools/{quote_part(name)}"))

    def add_pool(self, name: str, settings: Mapping[str, Any]) -> PoolDetail:
        """Configure one more pool; settings as in pools.yaml."""
        return cast("PoolDetail", self._post("/pools", {"name": name, "settings": settings}))

    def remove_pool(self, name: str) -> PoolFileView:
        """Take a pool out of the configuration; it serves the runs that it has."""
        return cast("PoolFileView", self._send("DELETE", f"/pools/{quote_part(name)}").json())

    def examine_pool(self, name: str, *, deep: bool = False) -> list[FindingView]:
        """Look at everything that a pool needs; deep: also by a tiny job on a node, which may have to wait."""
        answer = self._send("POST", f"/pools/{quote_part(name)}/examine", body={"deep": deep}, timeout=_EXAMINE)
        return cast("list[FindingView]", answer.json())

    def pool_jobs(self, name: str, *, quiet_s: float = 1800.0) -> list[PoolJobView]:
        """Jobs of Gangline's in a pool with a queue of its own; runs without progress for `quiet_s` are told of."""
        return cast("list[PoolJobView]", self._get(f"/pools/{quote_part(name)}/jobs", {"quiet_s": quiet_s}))

    def end_zombies(self, name: str) -> list[PoolJobView]:
        """End the jobs that no run counts on, and those on which nothing of ours lives."""
        return cast("list[PoolJobView]", self._post(f"/pools/{quote_part(name)}/jobs/end", {}))

    def nodes(self, pool: str | None = None) -> list[NodeHealthView]:
        """The machines that are known by name, and what speaks against them; default: of all pools."""
        return cast("list[NodeHealthView]", self._get("/pools/nodes", {"pool": pool}))

    def clear_node(self, node: str, *, pool: str | None = None) -> ClearedView:
        """Count nothing against a machine that happened so far; default: in every pool."""
        return cast("ClearedView", self._post("/pools/nodes/clear", {"node": node, "pool": pool}))
