"""The agent as one file, which any Python >= 3.10 runs, and which also gives ranks `import gangline`.

It holds the bridge, too (`agent.pyz bridge WORK`).

Beside each source lies its bytecode for the interpreter that builds, which saves that interpreter (nearly always the
one that runs the agent) the compiling; any other reads the source.
Standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gangline.rundir.files import write_bytes

__all__ = ["build", "bundle_name", "render_bundle"]

PARTS = ("__init__.py", "ray.py", "domain", "rundir", "training", "agent", "bridge")
_MAIN = """import gc
import sys

if __name__ == "__main__":
    gc.set_threshold(50_000)  # what imports make is no garbage, and looking for it would take a tenth of the start
    if sys.argv[1:2] == ["bridge"]:
        from gangline.bridge.serve import main
    else:
        from gangline.agent.main import main
    sys.exit(main())
"""
_DATE = (1980, 1, 1, 0, 0, 0)
_DIGEST_CHARS = 16
_UNCHECKED_HASH = 0b01
"""Flag of PEP 552: the bytecode carries a hash of its source, which nobody compares."""


def build(folder: Path) -> Path:
    """Put the bundle of this installation into a folder, unless it is there; its path.

    Its name holds the digest of its content, so that agents of an older version keep the file that they run from.
    """
    data = render_bundle()
    path = folder / bundle_name(data)
    if not path.exists():
        write_bytes(path, data)
    return path


def bundle_name(data: bytes) -> str:
    """`agent-<digest>.pyz`."""
    return f"agent-{hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]}.pyz"


@functools.cache
def render_bundle() -> bytes:
    """The zipapp; all that a process makes have one name, which `marshal` alone would not see to."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for name, source in _sources():
            _add(archive, name, source)
    return buffer.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parents[1]
    files: list[Path] = []
    for part in PARTS:
        files.extend([root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")))
    for file in files:
        yield f"gangline/{file.relative_to(root).as_posix()}", file.read_bytes()


def _add(archive: zipfile.ZipFile, name: str, source: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), source)
    archive.writestr(zipfile.ZipInfo(f"{name}c", _DATE), _bytecode(name, source))


def _bytecode(name: str, source: bytes) -> bytes:
    """As `py_compile` would write it, never checked against the source: both are in one file."""
    code = compile(source, name, "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + importlib.util.source_hash(source)
    return header + marshal.dumps(code)
