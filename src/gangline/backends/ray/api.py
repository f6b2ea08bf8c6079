"""The Jobs API of a Ray cluster over plain HTTP, so that the server needs no Ray and no version has to match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gangline.domain.errors import AuthFailed, BackendError, Rejected, Transient
from gangline.domain.pool import RayPool

__all__ = ["OVER", "Job", "JobsApi", "RayNode", "Version"]

_TIMEOUT = httpx.Timeout(20.0, connect=4.0)
_REFUSED = frozenset({401, 403})
_EXISTS = "already exists"
OVER = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
"""The states of a job whose entry point runs no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What answers."""

    session: str
    """Of the cluster: another one after its head was started anew."""
    ray: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job that was submitted by its API."""

    submission_id: str
    status: str
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.status in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node of the cluster that lives, and what it has in all."""

    host: str
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: float = 0.0


class JobsApi:
    """The calls that are needed. Safe for threads. Every method may raise `Transient` and `AuthFailed`."""

    def __init__(self, pool: RayPool, *, transport: httpx.BaseTransport | None = None) -> None:
        self._pool = pool
        self._http = httpx.Client(base_url=pool.address, timeout=_TIMEOUT, transport=transport, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def version(self) -> Version:
        """Of the cluster, with its session."""
        raw = self._json("GET", "/api/version")
        if "session_name" not in raw:
            raise Rejected(
                f"The Ray of pool `{self._pool.name}` is too old",
                why=f"Version {raw.get('ray_version', 'unknown')} does not say in which session it is",
                fix="Start the cluster with a newer one.",
            )
        return Version(session=str(raw["session_name"]), ray=str(raw.get("ray_version", "")))

    def jobs(self) -> list[Job]:
        """All that were submitted to this session, by whomever."""
        return [_job(raw) for raw in self._json("GET", "/api/jobs/") if raw.get("submission_id")]

    def submit(self, body: Mapping[str, Any]) -> None:
        """Hand over a job; twice with one `submission_id` is one job.

        Raises:
            Rejected: Ray does not take it, in its words.
        """
        answer = self._ask("POST", "/api/jobs/", body)
        if answer.is_success or _EXISTS in answer.text:
            return
        if answer.is_client_error:
            raise Rejected(f"Pool `{self._pool.name}` does not take the job", why=_last_line(answer.text))
        raise self._transient(f"it answered {answer.status_code}: {_last_line(answer.text)}")

    def stop(self, submission_id: str) -> None:
        """Have Ray end a job; nothing happens to one that is over, or is not there."""
        answer = self._ask("POST", f"/api/jobs/{submission_id}/stop", {})
        if not answer.is_success and not answer.is_client_error:
            raise self._transient(f"it answered {answer.status_code}: {_last_line(answer.text)}")

    def nodes(self) -> list[RayNode]:
        """The nodes that live, by the state API."""
        raw = self._json("GET", "/api/v0/nodes?detail=1&limit=10000")
        found = raw.get("data", {}).get("result", {}).get("result", [])
        return [_node(one) for one in found if one.get("state") == "ALIVE"]

    def log(self, submission_id: str) -> str:
        """What the entry point of a job has printed."""
        return str(self._json("GET", f"/api/jobs/{submission_id}/logs").get("logs") or "")

    def _json(self, method: str, path: str) -> Any:  # noqa: ANN401 - JSON
        answer = self._ask(method, path, None)
        if not answer.is_success:
            raise self._transient(f"{path} answered {answer.status_code}: {_last_line(answer.text)}")
        try:
            return answer.json()
        except ValueError as error:
            raise self._transient(f"what answers {path} is no dashboard of Ray") from error

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body, headers=self._headers())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._transient(str(error) or type(error).__name__) from error
        if answer.status_code in _REFUSED:
            raise AuthFailed(
                f"The Ray cluster of pool `{self._pool.name}` lets nobody in without its token",
                why=f"It answered {answer.status_code}",
                fix="Name the file that holds it with `token_file:` in pools.yaml.",
            )
        return answer

    def _headers(self) -> dict[str, str]:
        """The token is read anew each time: it may change while the server runs."""
        if self._pool.token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self._pool.token_file).read_text(encoding='ascii').strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise AuthFailed(f"The token of pool `{self._pool.name}` cannot be read", why=str(error)) from error

    def _transient(self, why: str) -> BackendError:
        return Transient(f"The Jobs API of pool `{self._pool.name}` at {self._pool.address} gives no answer", why=why)


def _job(raw: Mapping[str, Any]) -> Job:
    began = raw.get("start_time")
    return Job(
        submission_id=str(raw["submission_id"]),
        status=str(raw.get("status", "")),
        message=str(raw.get("message") or ""),
        exit_code=raw.get("driver_exit_code"),
        started=None if began is None else began / 1000.0,
        metadata={str(key): str(value) for key, value in (raw.get("metadata") or {}).items()},
    )


def _node(raw: Mapping[str, Any]) -> RayNode:
    total = raw.get("resources_total") or {}
    return RayNode(
        host=str(raw.get("node_name") or raw.get("node_ip") or ""),
        cpus=float(total.get("CPU", 0)),
        gpus=float(total.get("GPU", 0)),
        memory_bytes=float(total.get("memory", 0)),
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "nothing"
