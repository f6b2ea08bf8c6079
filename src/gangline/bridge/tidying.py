"""What goes from the work folder: runs that are removed, and by age what nobody uses any more. Standard library only.

Nothing above or outside of the work folder is touched, no link is followed, and a doubt keeps what it is about.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.rundir.confined import UnsafePath, open_parent

__all__ = ["remove_run", "tidy"]

_GOING = ".removed-"
"""In front of the name of a run's folder from when it is being removed."""
_AGENT = re.compile(r"agent-\w+\.pyz")
_BLOCK_BYTES = 512
_SAFE_RUN = re.compile(r"[A-Za-z0-9][\w.-]*")


def remove_run(root: str, run: str, *, keep_checkpoints: bool) -> dict[str, Any]:
    """Remove the folder of a run; may be repeated.

    Returns:
        `kept`: where its checkpoints are now, or null; `freed_bytes`; `left`: why something of it stays, or "".
    Raises:
        UnsafePath: it is no name of a run, or a link is on the way.
        OSError: the folder cannot be renamed.
    """
    if not _SAFE_RUN.fullmatch(run):
        raise UnsafePath(f"`{run}` is no run")
    kept = _keep_checkpoints(root, run) if keep_checkpoints else None
    freed, left = 0, ""
    with suppress(FileNotFoundError), open_parent(root, f"runs/{run}", create=False) as (folder, name):
        going = f"{_GOING}{run}.{secrets.token_hex(4)}"
        os.rename(name, going, src_dir_fd=folder, dst_dir_fd=folder)
        freed, left = _delete(folder, going)
    return {"kept": kept, "freed_bytes": freed, "left": left}


def tidy(root: str, *, agent: str, age_s: float, now: float) -> dict[str, int]:
    """Remove what is older than that and not in use: agents of other versions, cut-off uploads, contents of no run.

    Args:
        agent: name of the agents' zipapp that is used now.
        age_s: since it was written, sent or asked for.
    Returns:
        `files`: how many were removed; `freed_bytes`.
    """
    before = now - age_s
    old = [*_old_agents(root, agent, before), *_old_files(root, "uploads", before), *_old_contents(root, before)]
    freed = files = 0
    for path in old:
        with suppress(OSError), open_parent(root, path, create=False) as (folder, name):
            found = os.lstat(name, dir_fd=folder)
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:  # it may have been asked for meanwhile
                os.unlink(name, dir_fd=folder)
                freed, files = freed + found.st_blocks * _BLOCK_BYTES, files + 1
    with suppress(OSError), open_parent(root, "runs/any", create=False) as (folder, _):
        for name in [name for name in os.listdir(folder) if name.startswith(_GOING)]:
            freed += _delete(folder, name)[0]
    return {"files": files, "freed_bytes": freed}


def _keep_checkpoints(root: str, run: str) -> str | None:
    """Move them where they stay."""
    with suppress(FileNotFoundError), open_parent(root, f"runs/{run}/checkpoints", create=False) as (source, name):
        if stat.S_ISDIR(os.lstat(name, dir_fd=source).st_mode) and os.listdir(f"/proc/self/fd/{source}/{name}"):
            with open_parent(root, f"kept/{run}") as (target, place):
                taken = set(os.listdir(target))
                free = next(
                    one for one in (place, *(f"{place}.{n}" for n in range(1, len(taken) + 2))) if one not in taken
                )
                os.rename(name, free, src_dir_fd=source, dst_dir_fd=target)
                return f"{root}/kept/{free}"
    kept = f"{root}/kept/{run}"
    return kept if os.path.isdir(kept) else None


def _delete(folder: int, name: str) -> tuple[int, str]:
    """Remove a file, link or folder of an open folder; bytes that this has freed, and what stays."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return 0, ""
    path = f"/proc/self/fd/{folder}/{name}"
    size = _size_of(path)
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.exists(path):
        return size, ""
    for inner, _, _ in os.walk(path):  # training code may have made folders read-only
        with suppress(OSError):
            os.chmod(inner, stat.S_IRWXU)
    try:
        shutil.rmtree(path)
    except OSError as error:
        return max(0, size - _size_of(path)), f"{os.path.basename(error.filename or name)}: {error.strerror}"
    return size, ""


def _size_of(path: str) -> int:
    total = 0
    for inner, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(inner, name)).st_blocks * _BLOCK_BYTES
    return total


def _old_files(root: str, folder: str, before: float) -> Iterator[str]:
    """Regular files directly in a folder, by their path below the work folder."""
    with suppress(OSError), os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before:
                    yield f"{folder}/{entry.name}"


def _old_agents(root: str, agent: str, before: float) -> list[str]:
    found = [path for path in _old_files(root, "agents", before) if not path.endswith(f"/{agent}")]
    if not found:
        return []
    try:
        used = _agents_in_use(root)
    except OSError:
        return []
    return [path for path in found if path.rpartition("/")[2] not in used]


def _agents_in_use(root: str) -> set[str]:
    """Those that the newest launches of a run name whose job has not ended: one may wait for the end of the other."""
    used: set[str] = set()
    for launches in Path(root, "runs").glob("*/launches"):
        numbered = sorted((one for one in launches.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
        for newest in numbered[-2:]:
            if not (newest / "job.exit").exists() and (newest / "node.sh").exists():
                used.update(_AGENT.findall((newest / "node.sh").read_text(errors="replace")))
    return used


def _old_contents(root: str, before: float) -> list[str]:
    """Contents that no run's list of files names, and what is left of those that were cut off."""
    folders = [f"objects/{one:02x}" for one in range(256)]
    found = [path for folder in folders for path in _old_files(root, folder, before)]
    if not found:
        return []
    try:
        used = _contents_in_use(root)
    except (OSError, ValueError, KeyError, TypeError):  # whoever cannot read what is used must not remove it
        return []
    return [path for path in found if path[len("objects/") :].replace("/", "") not in used]


def _contents_in_use(root: str) -> set[str]:
    used: set[str] = set()
    for manifest in Path(root, "runs").glob("*/code.json"):
        listed = json.loads(manifest.read_bytes())["files"]
        used.update(entry["digest"] for entry in listed if "digest" in entry)
    return used
