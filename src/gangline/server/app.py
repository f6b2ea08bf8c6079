"""The HTTP application: routes over `Parts`, behind the gate. OpenAPI is at /api/v1/openapi.json."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from gangline.domain.version import VERSION
from gangline.server import (
    errors,
    routes_again,
    routes_code,
    routes_compare,
    routes_logs,
    routes_machines,
    routes_pools,
    routes_removal,
    routes_runs,
    routes_server,
    routes_stacks,
)
from gangline.server.auth import Gate
from gangline.server.parts import Parts
from gangline.wire.views import ErrorBody

__all__ = ["API", "make_api", "make_app"]

API = "/api/v1"


def make_app(parts: Parts, *, token: str) -> ASGIApp:
    """What uvicorn serves."""
    return Gate(make_api(parts), token=token)


def make_api(parts: Parts) -> FastAPI:
    """The routes without the gate."""
    api = FastAPI(
        title="Gangline",
        version=VERSION,
        description="Distributed training in one command. Every call carries `Authorization: Bearer TOKEN`.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    errors.install(api)
    failed: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "It did not work."}}
    for routes in (
        routes_server,
        routes_machines,
        routes_pools,
        routes_again,
        routes_removal,
        routes_compare,
        routes_runs,
        routes_logs,
        routes_stacks,
        routes_code,
    ):
        api.include_router(routes.make_router(parts), prefix=API, responses=failed)
    return api
