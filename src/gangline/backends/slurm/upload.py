"""What the cluster lacks of a run, sent before its job is submitted: contents of the snapshot, then the run's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gangline.backends.slurm.link import Link
from gangline.domain.errors import NotFound
from gangline.rundir.files import read_json
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore

__all__ = ["upload_run"]

_SIDE_BY_SIDE = 6


def upload_run(home: Home, link: Link, run_id: str, files: Sequence[str]) -> None:
    """Send what the far side lacks; may be repeated.

    Args:
        files: besides spec and manifest, by path relative to the run directory.
    Raises:
        NotFound: a file of the run is gone from here.
        Transient, AuthFailed: as `Link` raises them.
    """
    run_dir = home.run(run_id)
    send_contents(home, link, run_dir)
    own = [path.name for path in (run_dir.spec, run_dir.code_manifest) if path.exists()]
    with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="gangline-upload") as pool:
        for sent in [pool.submit(_send, link, run_dir.path, run_id, name) for name in (*own, *files)]:
            sent.result()


def send_contents(home: Home, link: Link, run_dir: RunDir) -> None:
    """Send contents of the run's snapshot that no earlier run has sent."""
    raw = read_json(run_dir.code_manifest)
    if raw is None:
        return
    digests = list(dict.fromkeys(Manifest.from_dict(raw).digests()))
    lacking = link.missing(digests)
    if lacking:
        link.store(_contents(ObjectStore(home.path), lacking))


def _contents(objects: ObjectStore, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for digest in digests:
        with objects.open(digest) as file:
            yield digest, file.read()


def _send(link: Link, folder: Path, run_id: str, name: str) -> None:
    try:
        data = Path(folder, name).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{name} of run `{run_id}` was removed", fix="Submit the run again.") from error
    link.write(f"runs/{run_id}/{name}", data)
