"""The one speaker of HTTP: a method for every call of the API, answers as the typed dictionaries of `wire/views.py`.

Imports httpx and the standard library; nothing of the server.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from gangline.client.answers import check_answer, unreachable
from gangline.client.follow import Follow
from gangline.client.http import httpx
from gangline.client.poolcalls import PoolCalls, quote_part
from gangline.domain.errors import NotFound, StillEnding
from gangline.domain.phase import TERMINAL, Phase

if TYPE_CHECKING:
    from gangline.wire.compared import CompareView, RanksView
    from gangline.wire.removed import FreedView, RemovedView, RunSizeView
    from gangline.wire.views import (
        CheckpointView,
        EventView,
        HealthView,
        LogChunk,
        LogHit,
        MetricView,
        RunDetail,
        RunSummary,
        SearchEnd,
        StacksView,
        SystemView,
    )

__all__ = ["API", "Client"]

API = "/api/v1"
_WAIT_SLACK_S = 10.0
"""How much longer than a long poll the client waits for its answer."""
_ENDING_S = 0.2
"""How often a run that is still ending is asked again."""
_LONGEST_POLL_S = 60.0
_MOST_TRIES = 4
_FOLLOW_READ_S = 30.0
"""A follow stream says something at least every few seconds; after this long its server is taken for dead."""


class Client(PoolCalls):
    """The verbs of Gangline.

    Args:
        http: has the server's base URL and the token.
        reconnect: finds (and starts) the server again after a connection broke; None: a broken connection is an error.
        any_version: talk to a server of any version; for `gangline server status` and `stop`.
    Raises:
        GanglineError: from every method, the class that the server meant; `ServerUnreachable` where none answers.
    """

    def __init__(
        self, http: httpx.Client, *, reconnect: Callable[[], httpx.Client] | None = None, any_version: bool = False
    ) -> None:
        self._http = http
        self._reconnect = reconnect
        self._any_version = any_version
        self.is_of_other_code = False
        """Whether the server was started by other code of this very version, and is too busy to be replaced."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url)

    def close(self) -> None:
        """Let go of connections; the server stays."""
        self._http.close()

    # --- server ---

    def health(self) -> HealthView:
        return cast("HealthView", self._get("/health"))

    def stop_server(self) -> None:
        """End the server; runs go on without it."""
        self._send("POST", "/server/stop", retry=False)

    # --- runs ---

    def submit(
        self, spec: Mapping[str, Any], *, client: Mapping[str, Any], key: str, lease_s: float | None = None
    ) -> RunDetail:
        """Create a run. Twice with one `key` gives one run, so a cut connection is no danger.

        Args:
            spec: as `wire.spec.spec_to_mapping` makes it, with its snapshot.
            client: who submits, from where, by which command line.
            lease_s: the run ends, as if it were stopped, when it is not renewed for so long; None: it needs nobody.
        """
        body = {"spec": spec, "client": client, "key": key, "lease_s": lease_s}
        return cast("RunDetail", self._post("/runs", body))

    def check(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """What the backend would be given for this spec; nothing is stored."""
        answer = self._post("/runs/check", {"spec": spec, "client": {}, "key": ""})
        return cast("dict[str, Any]", answer["launch"])

    def list_runs(
        self,
        *,
        phases: Sequence[str] = (),
        name: str | None = None,
        project: str | None = None,
        labels: Sequence[str] = (),
        limit: int | None = 100,
    ) -> list[RunSummary]:
        """Runs, newest first.

        Args:
            phases: only these; empty: all.
            name: only runs whose name contains it, whatever the case of its letters.
            labels: `K=V` each: only runs that have all of them.
            limit: None for every run.
        """
        most = 0 if limit is None else limit
        query = {"phase": list(phases), "name": name, "project": project, "label": list(labels), "limit": most}
        return cast("list[RunSummary]", self._get("/runs", query))

    def run(self, run: str) -> RunDetail:
        """All that is known of a run.

        Args:
            run: its id, the beginning of one, or `latest`; so in every method.
        """
        return cast("RunDetail", self._get(_of(run)))

    def wait(self, run: str, *, timeout_s: float = 30.0, version: int | None = None) -> RunSummary:
        """The run, once it is over or `timeout_s` has passed.

        Args:
            version: return as soon as the run's `version` is another one, too.
        """
        if version is None:
            return self._wait_for_the_end(run, timeout_s)
        query = {"timeout_s": min(timeout_s, _LONGEST_POLL_S), "version": version}
        answer = self._get(f"{_of(run)}/wait", query, timeout=httpx.Timeout(timeout_s + _WAIT_SLACK_S))
        return cast("RunSummary", answer)

    def _wait_for_the_end(self, run: str, timeout_s: float) -> RunSummary:
        deadline = time.monotonic() + timeout_s
        seen = self.wait(run, timeout_s=0.0, version=-1)
        while Phase(seen["phase"]) not in TERMINAL and (left := deadline - time.monotonic()) > 0:
            seen = self.wait(run, timeout_s=left, version=seen["version"])
        return seen

    def stop(self, run: str, *, grace_s: float | None = None) -> RunSummary:
        """Ask a run to stop; its ranks get `grace_s` (default: the spec's) to save."""
        return cast("RunSummary", self._post(f"{_of(run)}/stop", {"grace_s": grace_s}))

    def renew(self, run: str) -> RunSummary:
        """Say that a run with a lease is still wanted; harmless for one without, or one that is over."""
        return cast("RunSummary", self._post(f"{_of(run)}/renew", {}))

    def rerun(
        self,
        run: str,
        *,
        changes: Mapping[str, Any],
        args: Sequence[str] | None = None,
        client: Mapping[str, Any],
        key: str,
    ) -> RunDetail:
        """Create a run with the spec and the code of another one; it starts afresh.

        Args:
            changes: keys of the spec with other values, nested.
            args: of the entry point; None: the same.
            client, key: as for `submit`.
        """
        body = {"changes": changes, "args": None if args is None else list(args), "client": client, "key": key}
        return cast("RunDetail", self._post(f"{_of(run)}/rerun", body))

    def debug(self, run: str, *, client: Mapping[str, Any], key: str, **options: Any) -> RunDetail:
        """Create a run that repeats another one in a smaller world, from where that one would go on.

        Args:
            client, key: as for `submit`.
            options: nodes, procs_per_node, checkpoint, fresh, pdb, rank; see docs/reference/http-api.md.
        """
        return cast("RunDetail", self._post(f"{_of(run)}/debug", {**options, "client": client, "key": key}))

    def resume(
        self,
        run: str,
        *,
        checkpoint: str | None = None,
        changes: Mapping[str, Any] | None = None,
        lease_s: float | None = None,
        patience_s: float = math.inf,
    ) -> RunSummary:
        """Queue a run that failed or was stopped once more.

        Args:
            checkpoint: a step, `latest`, the folder of a checkpoint, `RUN:STEP` or `RUN:latest`; None: the newest.
            changes: keys of the spec with other values, nested: sizes, restarts, time limits, priority.
            lease_s: of the run from now on; None: it needs nobody, whatever was before.
            patience_s: how long to wait for a run that is still ending.
        Raises:
            StillEnding: it did not end in that time.
            Conflict: the run is not over and nobody has asked it to stop, or it has succeeded.
        """
        body = {"checkpoint": checkpoint, "changes": dict(changes or {}), "lease_s": lease_s}
        path = f"{_of(run)}/resume"
        answer = _patiently(lambda: self._send("POST", path, body=body, retry=False), patience_s)
        return cast("RunSummary", answer.json())

    def measure(self, run: str) -> RunSizeView:
        """What removing a run would remove."""
        return cast("RunSizeView", self._get(f"{_of(run)}/size"))

    def remove(self, run_id: str, *, keep_checkpoints: bool = False, patience_s: float = math.inf) -> RemovedView:
        """Remove a run that is over, with its folder.

        Args:
            run_id: its whole id.
            keep_checkpoints: move those in its folder to another one, which the answer names.
            patience_s: how long to wait for a run that is still ending.
        Raises:
            StillEnding: it did not end in that time.
            Conflict: it is not over and nobody has asked it to stop, or another run starts from its checkpoints.
        """
        path, query = _of(run_id), {"keep_checkpoints": keep_checkpoints}
        answer = _patiently(lambda: self._send("DELETE", path, query=query, timeout=_UPLOAD, retry=False), patience_s)
        return cast("RemovedView", answer.json())

    def free_objects(self) -> FreedView:
        """Remove contents of code that no run uses any more."""
        return cast("FreedView", self._send("POST", "/objects/free", timeout=_UPLOAD).json())

    def compare(self, runs: Sequence[str], *, code: bool = False) -> CompareView:
        """What differs between two or more runs.

        Args:
            code: with the differences of each file, line by line.
        """
        return cast("CompareView", self._get("/compare", {"run": list(runs), "code": code}))

    def compare_ranks(self, run: str, *, attempt: int | None = None) -> RanksView:
        """What differs between the workers of a run; attempt None: the newest."""
        return cast("RanksView", self._get(f"{_of(run)}/ranks", {"attempt": attempt}))

    def report(self, run: str, *, form: str = "html") -> tuple[bytes, int]:
        """All that is known of a run as one file, and from how many places a secret was removed.

        Args:
            form: `html` or `zip`.
        """
        answer = self._send("GET", f"{_of(run)}/report", query={"form": form}, timeout=_UPLOAD)
        return answer.content, int(answer.headers.get("X-Gangline-Removed", 0))

    def events(self, run: str, *, after: int = -1) -> list[EventView]:
        """The run's history after the entry with that `seq`."""
        return cast("list[EventView]", self._get(f"{_of(run)}/events", {"after": after}))

    def checkpoints(self, run: str) -> list[CheckpointView]:
        return cast("list[CheckpointView]", self._get(f"{_of(run)}/checkpoints"))

    def metrics(self, run: str) -> dict[str, float | None]:
        """Newest value of every metric of rank 0."""
        return cast("dict[str, float | None]", self._get(f"{_of(run)}/metrics"))

    def metric(self, run: str, name: str, *, rank: int = 0, buckets: int = 200) -> MetricView:
        """One metric in at most that many buckets."""
        path = f"{_of(run)}/metrics/{quote_part(name)}"
        return cast("MetricView", self._get(path, {"rank": rank, "buckets": buckets}))

    def system(self, run: str, *, attempt: int | None = None, samples: int = 1) -> list[SystemView]:
        """The newest samples of each node's machine."""
        asked = {"samples": samples} if attempt is None else {"samples": samples, "attempt": attempt}
        return cast("list[SystemView]", self._get(f"{_of(run)}/system", asked))

    # --- logs ---

    def log_chunk(
        self,
        run: str,
        rank: int,
        *,
        attempt: int | None = None,
        offset: int = 0,
        limit_bytes: int = 1 << 20,
        tail: int | None = None,
    ) -> LogChunk:
        """A piece of one rank's log.

        Args:
            attempt: None for the newest.
            tail: begin at the last that many lines instead of at `offset`.
        """
        query = {"attempt": attempt, "offset": offset, "limit_bytes": limit_bytes, "tail": tail}
        return cast("LogChunk", self._get(f"{_of(run)}/logs/{rank}", query))

    def raw_log(
        self,
        run: str,
        rank: int,
        *,
        attempt: int | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[bytes]:
        """The bytes of one rank's log, in pieces; a line says where its middle was dropped."""
        return self._pieces(f"{_of(run)}/logs/{rank}/raw", {"attempt": attempt, "since": since, "until": until})

    def log_chunks(
        self,
        run: str,
        *,
        ranks: Sequence[int] | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[LogChunk]:
        """The logs of several ranks as they are now, in order of time.

        Args:
            ranks: None for all.
            attempt: None for the newest.
            tail: only the last that many lines of each.
            since: only what was written from this time on, as `time.time()` counts.
            until: only what was written up to this time.
        """
        named = None if ranks is None else ",".join(map(str, ranks))
        query = {"ranks": named, "attempt": attempt, "tail": tail, "since": since, "until": until}
        return cast("Iterator[LogChunk]", self._items(f"{_of(run)}/logs", query))

    def search(
        self,
        run: str,
        pattern: str,
        *,
        ranks: Sequence[int] | None = None,
        attempt: int | None = None,
        **options: float | bool | None,
    ) -> Iterator[LogHit | SearchEnd]:
        """Lines that match, by attempt, rank and offset; the last item is the SearchEnd.

        Args:
            pattern: a regular expression without look-around and back references.
            ranks: None for all.
            attempt: None for all.
            options: `ignore_case`, `fixed` (plain text), `context` (lines around), `limit`, `since`, `until`.
        """
        named = None if ranks is None else ",".join(map(str, ranks))
        query = {"pattern": pattern, "ranks": named, "attempt": attempt, **options}
        return cast("Iterator[LogHit | SearchEnd]", self._items(f"{_of(run)}/search", query))

    def follow(
        self,
        run: str,
        *,
        ranks: Sequence[int] | None = None,
        attempt: int | None = None,
        offsets: Mapping[int, int] | None = None,
        tail: int | None = None,
        since: float | None = None,
        after: int = -1,
    ) -> Iterator[dict[str, Any]]:
        """What the ranks write and what happens to the run, as it comes, until the run is over.

        Goes on into each further attempt, and over a server that dies and comes back: nothing is lost or said twice.

        Args:
            ranks: None for all.
            attempt: where to begin; None: the newest. `submit` begins with 0, so that a short attempt is not missed.
            offsets: where to begin in the log of each rank of that attempt; ranks that are not named begin at 0.
            tail: begin at the last that many lines of each rank that has no offset.
            since: begin at what was written from this time on.
            after: `seq` of the last event that the caller knows.
        Yields:
            LogChunk, `{"event": EventView}`, `{"waits": why it is queued}` and, last, `{"end": RunSummary}`.
        """
        begin = {"tail": tail, "since": since}
        state = Follow(ranks=ranks, attempt=attempt, offsets=dict(offsets or {}), begin=begin, after=after)
        return state.items(lambda query: self._lines(f"{_of(run)}/follow", query), self._recover)

    # --- stacks ---

    def take_stacks(
        self, run: str, *, ranks: Sequence[int] | None = None, native: bool = False, timeout_s: float = 15.0
    ) -> StacksView:
        """Where the ranks are now.

        Args:
            ranks: None for all.
            native: with C++ frames, where py-spy is installed where ranks run; takes seconds.
            timeout_s: how long the leader may take to answer.
        Raises:
            Conflict: the run has no ranks that run.
            NoAnswer: its leader did not answer in time.
        """
        body = {"ranks": None if ranks is None else list(ranks), "native": native, "timeout_s": timeout_s}
        patience = httpx.Timeout(timeout_s + _WAIT_SLACK_S)
        answer = self._send("POST", f"{_of(run)}/stacks", body=body, timeout=patience)
        return cast("StacksView", answer.json())

    def last_stacks(self, run: str, *, attempt: int | None = None) -> StacksView:
        """The newest stacks that were taken, by somebody or by the watchdog.

        Args:
            attempt: None for the newest that has any.
        Raises:
            NotFound: none were taken.
        """
        return cast("StacksView", self._get(f"{_of(run)}/stacks", {"attempt": attempt}))

    # --- code ---

    def missing_objects(self, digests: Sequence[str]) -> list[str]:
        """Those contents that the server does not have."""
        answer = self._post("/objects/missing", {"digests": list(digests)})
        return cast("list[str]", answer["missing"])

    def put_objects(self, contents: Mapping[str, bytes]) -> int:
        """Upload several small contents in one call; the number that were new."""
        body = b"".join(b"%s\n%d\n%s" % (digest.encode(), len(data), data) for digest, data in contents.items())
        answer = self._send("POST", "/objects", content=body, timeout=_UPLOAD)
        return int(answer.json()["stored"])

    def put_object(self, digest: str, open_content: Callable[[], Iterator[bytes]]) -> None:
        """Upload one content of any size; `open_content` is called again when the connection broke."""
        self._retrying(
            lambda: self._http.request("PUT", f"{API}/objects/{digest}", content=open_content(), timeout=_UPLOAD)
        )

    def object(self, digest: str) -> Iterator[bytes]:
        """The bytes of a content, in pieces."""
        return self._pieces(f"/objects/{digest}", {})

    def put_snapshot(self, manifest: Mapping[str, Any]) -> str:
        """Store a manifest whose contents are all there; its digest."""
        return cast("str", self._post("/snapshots", manifest)["digest"])

    def snapshot(self, digest: str) -> dict[str, Any]:
        """A manifest."""
        return cast("dict[str, Any]", self._get(f"/snapshots/{digest}"))

    # --- transport ---

    def _get(self, path: str, query: Mapping[str, Any] | None = None, *, timeout: httpx.Timeout | None = None) -> Any:
        return self._send("GET", path, query=query, timeout=timeout).json()

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send("POST", path, body=body).json()

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
        headers = {}
        if body is not None:
            content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        options: dict[str, Any] = {"params": _given(query), "content": content, "headers": headers}
        if timeout is not None:
            options["timeout"] = timeout
        return self._retrying(lambda: self._http.request(method, f"{API}{path}", **options), retry=retry)

    def _retrying(self, send: Callable[[], httpx.Response], *, retry: bool = True) -> httpx.Response:
        """Send, and again after the connection broke: the server may be killed once more while it is asked again.

        Args:
            retry: False for calls that must not happen twice: those are repeated only if they never reached a server.
        """
        tries = 0
        while True:
            tries += 1
            try:
                return check_answer(send(), any_version=self._any_version)
            except httpx.TransportError as error:
                may_repeat = retry or isinstance(error, httpx.ConnectError)
                if tries == _MOST_TRIES or not may_repeat:
                    raise unreachable(self.url, error) from error
                self._recover(error)

    def _recover(self, error: httpx.TransportError) -> None:
        """Find the server again.

        Raises:
            ServerUnreachable: there is no way to.
        """
        if self._reconnect is None:
            raise unreachable(self.url, error) from error
        old, self._http = self._http, self._reconnect()
        old.close()

    @contextmanager
    def _stream(
        self, path: str, query: Mapping[str, Any], *, timeout: httpx.Timeout | None = None
    ) -> Iterator[httpx.Response]:
        options: dict[str, Any] = {"params": _given(query), "timeout": timeout or _UPLOAD}
        with self._http.stream("GET", f"{API}{path}", **options) as answer:
            if answer.is_error:
                answer.read()
            yield check_answer(answer, any_version=self._any_version)

    def _pieces(self, path: str, query: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            with self._stream(path, query) as answer:
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def _items(self, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Lines of JSON of an answer that ends by itself."""
        try:
            with self._stream(path, query) as answer:
                for line in _split_lines(answer.iter_bytes()):
                    if line.strip():
                        yield json.loads(line)
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def _lines(self, path: str, query: Mapping[str, Any]) -> Iterator[bytes]:
        with self._stream(path, query, timeout=httpx.Timeout(10.0, read=_FOLLOW_READ_S)) as answer:
            yield from _split_lines(answer.iter_bytes())


_UPLOAD = httpx.Timeout(10.0, read=120.0, write=120.0)


def _patiently(send: Callable[[], httpx.Response], patience_s: float) -> httpx.Response:
    """Send again and again while the run is still ending."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return send()
        except StillEnding:  # noqa: PERF203 - a request a turn, and a pause
            if time.monotonic() >= deadline:
                raise
            time.sleep(_ENDING_S)


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of JSON; httpx's own way through text costs more than reading them does."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _of(run: str) -> str:
    """The path of a run.

    Raises:
        NotFound: no run can have that name.
    """
    if not run.strip() or "/" in run:
        raise NotFound(f"There is no run `{run}`", fix="`gangline ps` lists them; `latest` is the newest.")
    return f"/runs/{quote_part(run)}"


def _given(query: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}
