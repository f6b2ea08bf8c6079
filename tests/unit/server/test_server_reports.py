"""Reports that take long leave the server to its other calls."""

from __future__ import annotations

import asyncio
import io
import threading

import httpx

from gangline.control.reporting import ReportFile
from gangline.server.app import make_app
from gangline.testing.commands import make_summary

V1 = "/api/v1"
MANY = 60
"""More than there are threads for short calls."""


def test_others_are_answered_while_many_reports_are_made(api, monkeypatch):
    api.commands.runs["a"] = make_summary(id="a")
    begun, go_on = threading.Semaphore(0), threading.Event()

    def report(run_id: str, *, form: str) -> ReportFile:
        begun.release()
        assert go_on.wait(60)
        content = f"{run_id} {form}".encode()
        return ReportFile(file=io.BytesIO(content), size_bytes=len(content), removed=1)

    monkeypatch.setattr(api.commands, "report", report)
    app = make_app(api.parts, token="t")

    async def ask() -> None:
        transport, headers = httpx.ASGITransport(app), {"Authorization": "Bearer t"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            reports = [asyncio.create_task(http.get(f"{V1}/runs/a/report")) for _ in range(MANY)]
            try:
                assert await asyncio.to_thread(begun.acquire, timeout=60)
                answer = await asyncio.wait_for(http.get(f"{V1}/runs"), 60)
                assert answer.status_code == 200
                assert not any(one.done() for one in reports)
            finally:
                go_on.set()
            assert {answer.text for answer in await asyncio.gather(*reports)} == {"a html"}

    asyncio.run(ask())
