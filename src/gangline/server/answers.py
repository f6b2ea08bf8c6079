"""Answers as JSON, encoded at once: nothing is validated on the way out, the shapes are those of `wire/views.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from starlette.responses import Response

__all__ = ["MOST", "encode", "json_answer"]

MOST = (1 << 63) - 1
"""The largest number that calls may name: files, and databases, count no further."""


def json_answer(value: object, *, status: int = 200) -> Response:
    """An answer with a JSON body."""
    return Response(encode(value), status_code=status, media_type="application/json")


def encode(value: object) -> bytes:
    """JSON in ASCII; numbers that JSON has no form for (a loss that is NaN) become null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
