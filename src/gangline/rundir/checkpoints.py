"""Checkpoints in their folder: found and judged. `rundir/commits.py` makes and retires them.

    <root>/step-0000000100.attempt-002/         one save; `.1`, `.2` … follow where the name was taken
    <root>/step-0000000100.attempt-002/manifest.json    its last file, by rename: with it, the save counts
    <root>/latest -> step-0000000100.attempt-002
    <root>/.saving/step-0000000100.attempt-002/ notes of the ranks while they save; gone afterwards
    <root>/.removed/                            what retention has taken out and is deleting

Standard library only.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.rundir.files import Unreadable, is_temporary, read_json

__all__ = [
    "LATEST",
    "MANIFEST",
    "NOTES",
    "PASSED_OVER",
    "FoundCheckpoint",
    "crc32_of",
    "find_checkpoints",
    "folder_name",
    "judge",
    "judge_folder",
    "list_checkpoint_folders",
    "list_files",
    "newest_complete",
    "parse_folder_name",
    "pick_newest",
    "render_choice",
]

MANIFEST = "manifest.json"
LATEST = "latest"
NOTES = ".saving"
PASSED_OVER = " was passed over: "
"""Stands in each warning on a checkpoint that a start did not take, between its path and the reason."""
_NAME = re.compile(r"step-([0-9]+)\.attempt-([0-9]+)(?:\.([0-9]+))?")
_NOTE = re.compile(r"rank-([0-9]+)\.(saving|done|failed)")
_BLOCK_BYTES = 1 << 20
_MOST_SAID = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """One folder in a checkpoint path, and whether it can be trusted."""

    path: Path
    step: int
    attempt: int
    save: int = 0
    """0 for the first save of this step in this attempt, then 1, 2 …"""
    complete: bool = False
    committed: bool = False
    """It has a manifest: it was complete once."""
    why_not: str = ""
    """A sentence for people: why it does not count. "" where it is complete."""
    run_id: str = ""
    world_size: int = 0
    time: float = 0.0
    """Wall clock of the commit."""
    size_bytes: int = 0
    """As its manifest says; without one, of what lies in it now."""
    num_files: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """What "newer" means: step, then attempt, then save, as numbers."""
        return self.step, self.attempt, self.save


def folder_name(step: int, attempt: int, save: int = 0) -> str:
    """`step-0000000100.attempt-002`, with `.1` and so on for further saves."""
    return f"step-{step:010d}.attempt-{attempt:03d}" + (f".{save}" if save else "")


def parse_folder_name(name: str) -> tuple[int, int, int] | None:
    """Step, attempt and save, or None where the name is not that of a checkpoint folder."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step, attempt, save = (int(group or 0) for group in match.groups())
    return step, attempt, save


def find_checkpoints(root: str | os.PathLike[str], *, checksums: bool = False) -> list[FoundCheckpoint]:
    """Every checkpoint folder in a checkpoint path, oldest first, each judged; [] where the path does not exist.

    Args:
        checksums: also read the files and compare what the manifest says of their contents; otherwise sizes alone.
    """
    return [judge(path, checksums=checksums) for path in list_checkpoint_folders(root)]


def newest_complete(
    root: str | os.PathLike[str], *, run_id: str | None = None, since_attempt: int = 0, checksums: bool = False
) -> tuple[FoundCheckpoint | None, list[FoundCheckpoint]]:
    """The checkpoint to resume from, and the newer folders that were passed over, newest first, with their `why_not`.

    Args:
        run_id: only checkpoints that this run has committed count; None: those of any run.
        since_attempt: older attempts are not looked at.
    """
    folders = [
        path
        for path in reversed(list_checkpoint_folders(root))
        if (parse_folder_name(path.name) or (0, 0, 0))[1] >= since_attempt
    ]
    return pick_newest((judge(path, checksums=checksums) for path in folders), run_id=run_id)


def pick_newest(
    newest_first: Iterable[FoundCheckpoint], *, run_id: str | None = None, since_attempt: int = 0
) -> tuple[FoundCheckpoint | None, list[FoundCheckpoint]]:
    """The same, of checkpoints that have been judged; looks no further than to the one that it takes."""
    skipped: list[FoundCheckpoint] = []
    for found in newest_first:
        if found.attempt < since_attempt:
            continue
        if found.complete and run_id in {None, found.run_id}:
            return found, skipped
        if not found.complete:
            skipped.append(found)
    return None, skipped


def render_choice(
    root: str | os.PathLike[str], found: FoundCheckpoint | None, skipped: list[FoundCheckpoint]
) -> list[str]:
    """What people read about the choice that `newest_complete` made, one line each."""
    lines = [f"passed over checkpoint {one.path.name}: {one.why_not}" for one in skipped[:_MOST_SAID]]
    if len(skipped) > _MOST_SAID:
        lines.append(f"passed over {len(skipped) - _MOST_SAID} more that are not complete")
    if found is None:
        return [*lines, f"no complete checkpoint in {os.fspath(root)}, starting fresh"]
    return [*lines, f"resuming from {found.path}"]


def judge_folder(path: Path) -> FoundCheckpoint:
    """Say whether a folder that a person named, or a link to one, is a complete checkpoint."""
    real = Path(os.path.realpath(path))
    if parse_folder_name(real.name) is None:
        return FoundCheckpoint(path=path, step=0, attempt=0, why_not="its name is not that of a checkpoint folder")
    return judge(real)


def judge(path: Path, *, checksums: bool = False) -> FoundCheckpoint:
    """Say whether one checkpoint folder is complete.

    Raises:
        ValueError: the folder's name is not that of a checkpoint.
    """
    order = parse_folder_name(path.name)
    if order is None:
        raise ValueError(f"`{path.name}` is not the name of a checkpoint folder")
    step, attempt, save = order
    manifest, why_not = _read_manifest(path)
    if manifest is None:
        num_files, size_bytes = _contents(path)
        return FoundCheckpoint(
            path=path,
            step=step,
            attempt=attempt,
            save=save,
            committed=(path / MANIFEST).exists(),
            why_not=why_not,
            size_bytes=size_bytes,
            num_files=num_files,
        )
    files: Mapping[str, Any] = manifest["files"]
    why_not = _fault(path, files, checksums=checksums)
    return FoundCheckpoint(
        path=path,
        step=step,
        attempt=attempt,
        save=save,
        complete=not why_not,
        committed=True,
        why_not=why_not,
        run_id=str(manifest.get("run_id") or ""),
        world_size=_whole(manifest.get("world_size")),
        time=_seconds(manifest.get("time")),
        size_bytes=sum(entry["size"] for entry in files.values()),
        num_files=len(files),
    )


def _read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        manifest = read_json(folder / MANIFEST)
    except Unreadable as error:
        return None, f"its manifest cannot be read ({error.why})"
    except OSError as error:
        return None, f"its manifest cannot be read ({error.strerror})"
    if manifest is None:
        return None, f"it has no manifest: the save was not finished{_render_notes(folder)}"
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        return None, "its manifest lists no files"
    if not all(isinstance(entry, dict) and type(entry.get("size")) is int for entry in files.values()):
        return None, "its manifest does not say how large its files are"
    return manifest, ""


def _render_notes(folder: Path) -> str:
    """Which ranks have not done their part of a save, as far as they have left word."""
    try:
        notes = [_NOTE.fullmatch(path.name) for path in (folder.parent / NOTES / folder.name).iterdir()]
    except OSError:
        return ""
    said: dict[str, set[int]] = {"saving": set(), "done": set(), "failed": set()}
    for note in filter(None, notes):
        said[note[2]].add(int(note[1]))
    began = said["saving"] - said["done"] - said["failed"]
    told = (("failed", said["failed"]), ("had not finished writing", began))
    return "".join(f", {_ranks(ranks)} {what}" for what, ranks in told if ranks)


def _ranks(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    named = ", ".join(map(str, ordered[:_MOST_SAID]))
    more = f" and {len(ordered) - _MOST_SAID} more" if len(ordered) > _MOST_SAID else ""
    return f"rank{'s' if len(ordered) > 1 else ''} {named}{more}"


def _contents(folder: Path) -> tuple[int, int]:
    """Files that lie in a folder, whatever they are, and their bytes; without the manifest."""
    found = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    sizes = []
    for path in found:
        with suppress(OSError):  # gone meanwhile
            sizes.append(0 if path == folder / MANIFEST else path.lstat().st_size)
    return len(sizes) - (folder / MANIFEST in found), sum(sizes)


def _fault(folder: Path, files: Mapping[str, Any], *, checksums: bool) -> str:
    """The first thing that is wrong with the files of a checkpoint, as a sentence; "" where nothing is."""
    for name, entry in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != entry["size"]:
                return f"`{name}` has {size:,} bytes, {entry['size']:,} were saved"
            crc32 = entry.get("crc32")
            if checksums and crc32 and crc32_of(folder / name) != crc32:
                return f"`{name}` is not what was saved (its checksum differs)"
        except FileNotFoundError:  # noqa: PERF203 - each file has its own fault
            return f"`{name}` is missing"
        except (OSError, ValueError) as error:
            return f"`{name}` cannot be read ({error})"
    extra = next((name for name in list_files(folder) if name not in files and name.endswith(".tmp")), None)
    return f"`{extra}` is not in its manifest: something was still writing" if extra else ""


def crc32_of(path: Path) -> str:
    """CRC-32 of a file's bytes, as 8 hex digits."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def list_files(folder: Path) -> list[str]:
    """Regular files (also behind symbolic links) by POSIX path relative to the folder, sorted; without the manifest."""
    found = []
    for parent, _, names in os.walk(folder):
        inner = Path(parent).relative_to(folder)
        found += [
            (inner / name).as_posix() for name in names if not is_temporary(name) and (Path(parent) / name).is_file()
        ]
    return sorted(name for name in found if name != MANIFEST)


def list_checkpoint_folders(root: str | os.PathLike[str]) -> list[Path]:
    """Folders that bear a checkpoint's name, oldest first (numbers, not text); [] where the path does not exist."""
    try:
        found = [(parse_folder_name(path.name), path) for path in Path(root).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = [(order, path) for order, path in found if order is not None and path.is_dir()]
    return [path for _, path in sorted(named)]


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
