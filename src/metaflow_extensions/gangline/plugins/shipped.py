"""What travels with a code package into containers: Gangline itself, and the defaults of the project.

An image need not hold Gangline: the agent and all that a gang in a container needs is Python's standard library.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["files_to_ship", "shipped_defaults"]

_DEFAULTS = "gangline_defaults.json"


def files_to_ship() -> Iterator[tuple[str, str]]:
    """Each file with its name in the package."""
    package = _package()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path), path.relative_to(package.parent).as_posix()
    yield _write_defaults(), _DEFAULTS


def shipped_defaults() -> dict[str, Any]:
    """What `gangline.yaml` said where the flow was deployed: the file does not travel, and could not be read."""
    path = _package().parent / _DEFAULTS
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(found)


@cache
def _write_defaults() -> str:
    from gangline.client.options import defaults_of, find_root  # noqa: PLC0415 - where flows are deployed alone

    folder = Path(tempfile.mkdtemp(prefix="gangline-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / _DEFAULTS).write_text(json.dumps(defaults_of(find_root(Path.cwd()))), encoding="utf-8")
    return str(folder / _DEFAULTS)


def _package() -> Path:
    import gangline  # noqa: PLC0415 - a name of its own here

    return Path(str(gangline.__file__)).parent
