"""The API over fakes, without a socket: what the server's and the client's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event
from starlette.types import ASGIApp

from gangline.client.client import Client
from gangline.rundir.home import Home
from gangline.server.app import make_app
from gangline.server.backends import Backends
from gangline.server.parts import Parts, Stopping
from gangline.server.pools import Pools
from gangline.snapshot.objects import ObjectStore
from gangline.testing import FakeBackend
from gangline.testing.commands import FakeCommands

TOKEN = "secret-of-the-tests"


@dataclass
class Api:
    commands: FakeCommands
    parts: Parts
    http: httpx.Client
    home: Home

    @property
    def client(self) -> Client:
        return Client(self.http)

    def write_log(self, run: str, rank: int, data: bytes, attempt: int = 0) -> Path:
        path = self.home.run(run).attempt(attempt).log(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
        return path


class SyncAsgiTransport(httpx.BaseTransport):
    """Answers the requests of a synchronous client from an ASGI application, one event loop for each."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._answer(request, request.read()))

    async def _answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        inner = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        answer = await httpx.ASGITransport(self._app, raise_app_exceptions=False).handle_async_request(inner)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


def pool_views(backends: Backends) -> list[dict[str, Any]]:
    """Enough of PoolView for what lies above it."""
    return [
        {"name": name, "backend": "fake", "state": backend.state().status.value, "running": 0, "queued": 0, "jobs": 0}
        for name, backend in backends.items()
    ]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    commands, home = FakeCommands(), Home(tmp_path / "state").create()
    backends = Backends(
        home, factories={"local": lambda: lambda _: FakeBackend(), "slurm": lambda: lambda _, __: FakeBackend()}
    )
    backends.watch(set)
    parts = Parts(
        commands=commands,
        pools=Pools(home=home, backends=backends, list_pools=lambda: pool_views(backends), poke=lambda: None),
        objects=ObjectStore(home.path),
        home=home,
        started=1.0,
        stopping=Stopping(),
        owner="alice",
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    app = make_app(parts, token=TOKEN)
    with httpx.Client(transport=SyncAsgiTransport(app), base_url="http://127.0.0.1", headers=headers) as http:
        yield Api(commands, parts, http, home)


class Statements(list):
    """What the databases of this process were told, in order."""

    def writes(self) -> int:
        """Transactions that were begun to write."""
        return self.count("BEGIN IMMEDIATE")


@pytest.fixture
def statements():
    told = Statements()

    def note(_conn, _cursor, statement, *_):
        told.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield told
    event.remove(Engine, "before_cursor_execute", note)
