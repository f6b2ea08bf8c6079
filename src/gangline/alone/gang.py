"""One launch of a gang on this machine: its run directory, its agent, and what they say until the end.

The run directory is what it always is, so agents, ranks and whoever reads it later see no difference. It may hold
earlier launches: then this one goes on from their checkpoints. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.agent import bundle
from gangline.alone.told import Told
from gangline.backends.local.detect import detect_capacity
from gangline.control.launchfile import LaunchTerms, render_launch_text
from gangline.domain.check import check_spec, complete_spec
from gangline.domain.errors import Rejected
from gangline.domain.gang import PoolCapacity
from gangline.domain.spec import RunSpec
from gangline.rundir.files import write_json, write_text
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import RunDir
from gangline.wire.spec import spec_to_mapping

__all__ = ["Gang", "Plan"]

_POLL_S = 0.1
_RENEWALS = 4
_SILENCE_S = 30.0
"""As long as a leader that lives is never silent."""
_PREFIX = "GANGLINE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run, and where it is kept."""

    run_id: str
    spec: RunSpec
    """Its entry is relative to `code`."""
    folder: Path
    """The run directory."""
    code: Path
    """The tree in which the ranks start."""
    lease_s: float = 120.0
    """How long the gang goes on when the process that started it is gone."""


class Gang:
    """A gang of one node: this machine.

    Args:
        environ: of the ranks; what is secret in it goes to no file.
    """

    def __init__(self, plan: Plan, *, environ: Mapping[str, str] = os.environ) -> None:
        self._plan = plan
        self._environ = environ
        self._run = RunDir(plan.folder)
        self._launch = len(self._run.launches())
        begun = self._run.attempts()
        self.first_attempt = begun[-1].number + 1 if begun else 0
        """Number of the first attempt of this launch."""
        self._agent: subprocess.Popen[bytes] | None = None
        self._ranks = range(plan.spec.resources.procs_per_node or 1)

    def start(self, *, pause: Callable[[float], None] = time.sleep) -> None:
        """Write the launch down and start its agent.

        Raises:
            SpecInvalid: the spec cannot be run.
            Rejected: this machine has not what it asks for.
            OSError: the run directory cannot be written.
        """
        capacity = detect_capacity(self._environ)
        spec = complete_spec(self._plan.spec, capacity)
        check_spec(spec)
        devices = _devices(spec, capacity)
        self._run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._await_silence(pause)
        self._place_code()
        write_json(self._run.spec, spec_to_mapping(spec))
        launch = self._run.launch(self._launch)
        launch.path.mkdir(parents=True)
        text = render_launch_text(spec, self._terms(devices, capacity.device_kind))
        write_text(launch.spec, text, mode=0o600)
        self._agent = self._spawn()
        self._ranks = range(spec.resources.procs_per_node or 1)

    def follow(self, *, pause: Callable[[float], None] = time.sleep) -> Iterator[tuple[int | None, str]]:
        """What ranks print, by rank, and what the leader has to say (rank None), until the agent has ended.

        The lease is kept for as long as this is read. Several times a second comes something, be it an empty text.
        """
        told = Told(self._run, first_attempt=self.first_attempt, ranks=self._ranks)
        due = 0.0
        while True:
            is_over = self._agent is None or self._agent.poll() is not None
            if not is_over and time.monotonic() >= due:
                due = time.monotonic() + self._plan.lease_s / _RENEWALS
                self._renew()
            items, is_all = told.read(is_over=is_over)
            yield from items
            if is_over and is_all:
                return
            if not items:
                yield None, ""
                pause(_POLL_S)

    def preempt(self) -> None:
        """Ask the gang to save and to end, as a scheduler does that takes a machine back."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def _terms(self, devices: tuple[str, ...], kind: str) -> LaunchTerms:
        return LaunchTerms(
            run_id=self._plan.run_id,
            launch=self._launch,
            first_attempt=self.first_attempt,
            devices=(devices,),
            device_kind=kind,
            token=secrets.token_hex(16),
            control_offset=self._run.control.stat().st_size if self._run.control.exists() else 0,
            default_checkpoints=str(self._run.checkpoints),
            lease_s=self._plan.lease_s,
        )

    def _spawn(self) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in self._environ.items() if not name.startswith(_PREFIX)}
        arguments = ("agent", str(self._run.path), "--launch", str(self._launch), "--node", "0")
        with self._run.launch(self._launch).log(0).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(bundle.build(self._run.path)), *arguments],
                env={**env, "GANGLINE_ADDRESS": "127.0.0.1"},
                cwd=self._run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _place_code(self) -> None:
        """Have `code/` be the tree that is there: nothing has to be restored."""
        temporary = self._run.path / f".code.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(self._plan.code.absolute(), target_is_directory=True)
        temporary.replace(self._run.code)

    def _await_silence(self, pause: Callable[[float], None]) -> None:
        """Let a gang of an earlier launch end that lives elsewhere: a machine may be lost to all but itself."""
        begun = self._run.attempts()
        if not begun or begun[-1].result.exists():
            return
        alive = self._run.launch(self._launch - 1).alive
        seen, since = None, time.monotonic()
        while time.monotonic() - since < _SILENCE_S and not begun[-1].result.exists():
            with suppress(OSError):
                if (now := alive.stat().st_mtime_ns) != seen:
                    seen, since = now, time.monotonic()
            if seen is None:
                return
            pause(_POLL_S)

    def _renew(self) -> None:
        with suppress(OSError), JournalWriter(self._run.control) as journal:
            journal.write("renew")


def _devices(spec: RunSpec, capacity: PoolCapacity) -> tuple[str, ...]:
    wanted = spec.resources.gpus_per_node or 0
    if wanted > len(capacity.devices):
        raise Rejected(
            f"{wanted} accelerators are asked for, and this machine shows {len(capacity.devices)}",
            fix="Ask for them where the machine is asked for, as in @kubernetes(gpu=…) or @batch(gpu=…).",
        )
    return tuple(capacity.devices[:wanted])
