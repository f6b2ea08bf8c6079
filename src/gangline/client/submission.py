"""From a spec to a run: take what the shell has, pack the working tree, check, upload what is new, create the run.

spec → `prepare` (touches this machine alone) → `send` (talks to the server)
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.client.batchscript import adopt_batch_script
from gangline.client.client import Client
from gangline.client.connection import connect
from gangline.client.entry import check_entry, relative_entry
from gangline.client.interpreter import check_python
from gangline.client.shell import environment_prefix, find_python, inherited_variables
from gangline.domain.check import resolve_checkpoints
from gangline.domain.errors import SnapshotRefused, SpecInvalid
from gangline.domain.naming import LOCAL
from gangline.domain.spec import EntryKind, RunSpec, SnapshotRef
from gangline.domain.version import VERSION
from gangline.rundir.home import Home
from gangline.rundir.serving import owner_name
from gangline.snapshot.hashing import cache_path_for
from gangline.snapshot.manifest import printable
from gangline.snapshot.objects import CHUNK_BYTES
from gangline.snapshot.pack import Packed, find_root, pack
from gangline.wire.spec import spec_from_mapping, spec_to_mapping

if TYPE_CHECKING:
    from gangline.wire.views import RunDetail

__all__ = ["Prepared", "check", "create", "describe_client", "prepare", "send", "spec", "submit", "upload"]

_BATCH_BYTES = 8 << 20
_INTERPRETERS = "interpreters.json"
"""File in the state folder that remembers which interpreters have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is ready to be sent: its complete spec, and the files that its snapshot needs."""

    spec: RunSpec
    packed: Packed
    cwd: Path
    warnings: tuple[str, ...] = ()
    """What may not be what was meant, for people: of the packing and of what is to run."""


def spec(**keys: Any) -> RunSpec:
    """A run spec, by the keys of a run file: `spec(script="train.py", resources={"nodes": 2})`.

    Args:
        keys: values as in a file; a section is a table, or an object such as `Resources(nodes=2)`.
    Raises:
        SpecInvalid: as for a file: an unknown key gets the nearest one, a wrong value what is valid.
    """
    return spec_from_mapping(keys)


def submit(
    run: RunSpec | Mapping[str, Any],
    *,
    root: Path | None = None,
    client: Client | None = None,
    command: Sequence[str] = tuple(sys.argv),
    key: str | None = None,
    lease_s: float | None = None,
) -> RunDetail:
    """Pack the working tree as it is now and create a run of it.

    Args:
        run: what is to run; a mapping has the keys of a run file.
        root: the project's folder; None: found from the current folder.
        client: None: the server that the environment means, started if need be.
        command: recorded with the run as the command line.
        key: what makes a repeated submit the same run; None: each makes a new one.
        lease_s: the run ends, as if it were stopped, when nobody renews for so long (`keep_lease`); None: it needs
            nobody.
    Raises:
        GanglineError: nothing was created, and why.
    """
    prepared = prepare(_as_spec(run), root=root)
    return send(prepared, client=client or connect(), command=command, key=key, lease_s=lease_s)


def check(
    run: RunSpec | Mapping[str, Any], *, root: Path | None = None, client: Client | None = None
) -> dict[str, Any]:
    """What the backend would be given, after every check that `submit` makes; nothing is stored or uploaded."""
    prepared = prepare(_as_spec(run), root=root)
    return (client or connect()).check(spec_to_mapping(replace(prepared.spec, snapshot=None)))


def prepare(
    spec: RunSpec,
    *,
    root: Path | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Prepared:
    """Fill in what this machine knows, pack, and check that the entry is there. Talks to nobody.

    Args:
        root: the project's folder; None: found from the current folder.
        cwd: the folder in which the ranks are to start, inside the project; None: the current one, or the project's
            where that was named and is elsewhere.
    Raises:
        SpecInvalid: no interpreter, or nothing to run where the entry says.
        SnapshotRefused: the tree cannot be packed.
    """
    typed_in = (cwd or Path.cwd()).absolute()
    cwd, root = _place(cwd, root)
    workdir = _workdir(cwd, root)
    spec = adopt_batch_script(spec, cwd=cwd, root=root)
    is_here = spec.pool == LOCAL
    spec = relative_entry(spec, cwd=cwd, root=root)
    spec = _with_checkpoints(spec, typed_in) if is_here else check_far_paths(spec)
    python = find_python(spec.environment.python, cwd=typed_in, root=root, environ=environ) if is_here else None
    home = Home.from_env(environ).path
    matters = python is not None and (spec.entry_kind is not EntryKind.COMMAND or spec.environment.python)
    with ThreadPoolExecutor(1) as beside:
        probe = None
        if python is not None and matters:
            probe = beside.submit(partial(check_python, python, memory=home / _INTERPRETERS, environ=environ))
        packed = pack(root, include=spec.include, cache_path=cache_path_for(home, root), home=home)
    if probe is not None:
        probe.result()
    _check_workdir(packed, workdir)
    variables = {} if python is None else _variables(python, environ)
    path = spec.environment.env.get("PATH", variables.get("PATH"))
    doubts = check_entry(spec, packed.manifest, workdir=workdir, python=python, path=path)
    named = spec.environment.python if python is None else str(python)
    spec = replace(
        spec,
        environment=replace(spec.environment, python=named),
        inherited_env=variables,
        snapshot=SnapshotRef(digest=packed.manifest.digest, workdir=workdir),
    )
    return Prepared(spec=spec, packed=packed, cwd=cwd, warnings=(*packed.warnings, *doubts))


def send(
    prepared: Prepared,
    *,
    client: Client,
    command: Sequence[str] = (),
    key: str | None = None,
    lease_s: float | None = None,
) -> RunDetail:
    """Upload what the server lacks and create the run.

    Args:
        key: idempotency key; None: a new one.
        lease_s: as for `submit`.
    """
    upload(client, prepared.packed)
    return create(prepared, client=client, command=command, key=key, lease_s=lease_s)


def create(
    prepared: Prepared,
    *,
    client: Client,
    command: Sequence[str] = (),
    key: str | None = None,
    lease_s: float | None = None,
) -> RunDetail:
    """Create the run of what has been uploaded; the second half of `send`. Once it is called, there may be a run."""
    who = describe_client(prepared.cwd, command)
    key = key or secrets.token_hex(16)
    return client.submit(spec_to_mapping(prepared.spec), client=who, key=key, lease_s=lease_s)


def upload(client: Client, packed: Packed) -> int:
    """Send the contents that the server lacks, then the manifest.

    Returns:
        How many contents were sent.
    Raises:
        SnapshotRefused: a file was changed or removed meanwhile.
    """
    missing = client.missing_objects(sorted(packed.manifest.digests()))
    sizes = {item.digest: item.size for item in packed.manifest.files if item.digest}
    batch: dict[str, bytes] = {}
    room = _BATCH_BYTES
    for digest in missing:
        if sizes[digest] > _BATCH_BYTES:
            _put_large(client, digest, packed.sources[digest], sizes[digest])
            continue
        if sizes[digest] > room:
            client.put_objects(batch)
            batch, room = {}, _BATCH_BYTES
        batch[digest] = _read(packed.sources[digest], digest, sizes[digest])
        room -= sizes[digest]
    if batch:
        client.put_objects(batch)
    client.put_snapshot(packed.manifest.to_dict())
    return len(missing)


def _as_spec(run: RunSpec | Mapping[str, Any]) -> RunSpec:
    return run if isinstance(run, RunSpec) else spec_from_mapping(run)


def _place(cwd: Path | None, root: Path | None) -> tuple[Path, Path]:
    """(the folder in which ranks start, the project's folder), both absolute."""
    here = (cwd or root or Path.cwd()).absolute()
    if cwd is None and root is not None and Path.cwd().is_relative_to(root.absolute()):
        here = Path.cwd()
    return here, (root or find_root(here)).absolute()


def _with_checkpoints(spec: RunSpec, cwd: Path) -> RunSpec:
    """The spec with an absolute checkpoint path; files have theirs resolved from their own folder before."""
    policy = spec.checkpoint
    path = None if policy.path is None else resolve_checkpoints(policy.path, folder=str(cwd))
    start = policy.start_from
    if start is not None and "/" in start:
        start = resolve_checkpoints(start, folder=str(cwd))
    return replace(spec, checkpoint=replace(policy, path=path, start_from=start))


def check_far_paths(spec: RunSpec) -> RunSpec:
    """The spec, if its paths mean the same on machines elsewhere as here.

    Raises:
        SpecInvalid: one starts from a folder of this machine.
    """
    policy = spec.checkpoint
    for flag, path in {"--checkpoint-path": policy.path, "--from-checkpoint": policy.start_from}.items():
        if path is None or path.startswith("/") or (flag == "--from-checkpoint" and "/" not in path):
            continue
        raise SpecInvalid(
            f"{flag} is `{path}`, which starts from a folder of this machine",
            why=f"The machines of pool `{spec.pool}` may have another one there",
            fix="Give the whole path as it is on the pool.",
        )
    return spec


def _check_workdir(packed: Packed, workdir: str) -> None:
    if workdir != "." and not any(f"{entry.path}/".startswith(f"{workdir}/") for entry in packed.manifest.files):
        raise SnapshotRefused(
            f"The folder {workdir} in which the run would start is left out of the snapshot",
            why="An ignore rule covers it, or nothing is in it",
            fix=f"Submit from another folder, or add `--include {workdir}`.",
        )


def _workdir(cwd: Path, root: Path) -> str:
    real_cwd, real_root = Path(os.path.realpath(cwd)), Path(os.path.realpath(root))
    if not real_cwd.is_relative_to(real_root):
        raise SnapshotRefused(f"{cwd} is not inside the project {root}", fix="Submit from inside the project.")
    return real_cwd.relative_to(real_root).as_posix()


def _variables(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The shell's variables, with the environment of the chosen interpreter active."""
    found = inherited_variables(environ)
    prefix = environment_prefix(python)
    if prefix is None:
        return found
    folders = [str(prefix / "bin"), *filter(None, found.get("PATH", os.defpath).split(os.pathsep))]
    found["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    if (prefix / "pyvenv.cfg").exists():
        found["VIRTUAL_ENV"] = str(prefix)
    return found


def describe_client(cwd: Path, command: Sequence[str]) -> dict[str, Any]:
    """Who asks, from which host and folder, by which command line."""
    return {
        "user": owner_name(),
        "host": socket.gethostname(),
        "folder": str(cwd),
        "command": shlex.join(command),
        "python": sys.executable,
        "version": VERSION,
    }


def _put_large(client: Client, digest: str, path: Path, size_bytes: int) -> None:
    try:
        client.put_object(digest, partial(_chunks, path, size_bytes))
    except SnapshotRefused as error:
        sha = hashlib.sha256()
        for chunk in _chunks(path, size_bytes):
            sha.update(chunk)
        if sha.hexdigest() != digest:
            raise _changed(path) from error
        raise


def _read(path: Path, digest: str, size_bytes: int) -> bytes:
    """What was packed; of a file that has grown since, as a log does, no more than that."""
    content = b"".join(_chunks(path, size_bytes))
    if hashlib.sha256(content).hexdigest() != digest:
        raise _changed(path)
    return content


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while size_bytes > 0 and (chunk := file.read(min(size_bytes, CHUNK_BYTES))):
                size_bytes -= len(chunk)
                yield chunk
    except OSError as error:
        raise _vanished(path, error) from error


def _changed(path: Path) -> SnapshotRefused:
    return SnapshotRefused(
        f"{printable(str(path))} was changed after it had been packed",
        why="Something writes to it",
        fix="Submit again; what is written all the time belongs in .ganglineignore.",
    )


def _vanished(path: Path, error: OSError) -> SnapshotRefused:
    return SnapshotRefused(
        f"{path} could not be read while it was sent", why=error.strerror or str(error), fix="Submit again."
    )
