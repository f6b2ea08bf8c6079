"""What a node is: `environment.json`, and what of it the leader compares before the ranks start.

The user's own interpreter is asked, unless the answer of an earlier time still holds: at once where nodes are to be
compared, else at low priority while ranks run. Tools of accelerators are asked while ranks run.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline import __version__
from gangline.agent.environ import AttemptTerms
from gangline.agent.hostfacts import read_host, relevant_variables
from gangline.agent.interpreter import KeptAnswers, parse_answer, question
from gangline.agent.loop import Loop
from gangline.agent.sameness import render_fingerprint
from gangline.agent.site import Site, complain
from gangline.rundir.files import write_json

__all__ = ["EnvironmentProbe", "parse_amd_devices", "parse_nvidia_devices"]

_LOWEST_PRIORITY = 19
_PATIENCE_S = 20.0
_LONGEST_ANSWER_BYTES = 4 << 20
_TOOLS = {
    "nvidia": [
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,driver_version,uuid",
        "--format=csv,noheader,nounits",
    ],
    "amd": ["rocm-smi", "--showproductname", "--showdriverversion", "--showmeminfo", "vram", "--json"],
}


class EnvironmentProbe:
    """Asks once per agent; the answer is written for every attempt."""

    def __init__(self, site: Site, loop: Loop) -> None:
        self._site = site
        self._loop = loop
        self.address = site.address
        """Known once the node has joined."""
        self.helpers: set[int] = set()
        """Pids of the children that ask, so that ending an attempt spares them."""
        shape = site.launch.shape()
        terms = AttemptTerms(attempt=site.launch.first_attempt, shape=shape, master_addr="", master_port=0)
        self._env = site.environment_of(shape.ranks_of(site.index)[0], terms)
        folder = Path(site.launch.answers) if site.launch.answers else None
        self._kept = KeptAnswers(folder, site.launch.python, self._env)
        self._python: dict[str, Any] | None = None
        self._answers: dict[str, str] = {}
        self._children: dict[str, Any] = {}
        self._asked_tools = False
        self._attempts: set[int] = set()
        self._waiting: list[Callable[[dict[str, Any]], None]] = []

    def begin(self) -> None:
        """Look for an answer of an earlier time; ask now where the gang waits for it."""
        self._python = self._kept.find()
        if self._python is None and self._site.launch.nodes > 1:
            self._spawn("python", question(self._site.launch.python), priority=0)

    def compare(self, attempt: int, tell: Callable[[dict[str, Any]], None]) -> None:
        """Write `environment.json` of an attempt and tell what the leader compares: now, or when it is known."""
        self._attempts.add(attempt)
        if self._site.launch.nodes == 1:
            if self._python is not None:
                self._write()
            tell({})
            return
        self._waiting.append(tell)
        if "python" in self._children:
            self._loop.after(_PATIENCE_S, self._tell)
        else:
            self._tell()

    def ask_the_rest(self) -> None:
        """Ask what the start did not wait for, once."""
        if self._asked_tools:
            return
        self._asked_tools = True
        if self._python is None and "python" not in self._answers:
            self._spawn("python", question(self._site.launch.python), priority=_LOWEST_PRIORITY)
        kind = self._site.launch.device_kind
        if kind in _TOOLS:
            self._spawn(kind, _TOOLS[kind], priority=_LOWEST_PRIORITY)
        if not self._children and self._attempts:
            self._write()

    def finish(self) -> None:
        """Wait for what is still to come, for a while; for an agent that is about to leave."""
        deadline = time.monotonic() + _PATIENCE_S
        if self._attempts:
            self.ask_the_rest()
        while self._attempts and self._children and time.monotonic() < deadline:
            for name in list(self._children):
                self._read(name)
            time.sleep(0.005)
        for child in self._children.values():
            child.kill()
            child.wait()
        self._children.clear()
        if self._attempts:
            self._write()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        facts = self._write()
        packages = self._site.launch.preflight.packages
        for tell in waiting:
            tell(render_fingerprint(facts, packages))

    def _spawn(self, name: str, argv: list[str], *, priority: int) -> None:
        import subprocess  # noqa: PLC0415 - nothing else of the agent needs it

        self._answers[name] = ""
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=self._env,
            )
        except OSError as error:
            complain(f"{argv[0]} cannot be asked: {error}")
            return
        if priority:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, priority)
        assert child.stdout is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(child.stdout.fileno(), False)
        self._children[name] = child
        self.helpers.add(child.pid)
        self._loop.watch(child.stdout, lambda: self._read(name))

    def _read(self, name: str) -> None:
        child = self._children.get(name)
        if child is None:
            return
        data = child.stdout.read(1 << 16)
        if data is None:
            return
        if data and len(self._answers[name]) < _LONGEST_ANSWER_BYTES:
            self._answers[name] += data.decode("utf-8", "replace")
            return
        self._loop.unwatch(child.stdout)
        child.stdout.close()
        child.kill()
        child.wait()
        del self._children[name]
        self.helpers.discard(child.pid)
        if name == "python":
            self._take_python()
        if not self._children and self._asked_tools:
            self._write()

    def _take_python(self) -> None:
        self._python = parse_answer(self._answers["python"])
        if self._python is not None:
            self._kept.keep(self._python)
        self._tell()

    def _write(self) -> dict[str, Any]:
        """Write what is known for every attempt that began since the answers were complete."""
        facts = self._facts()
        for number in sorted(self._attempts):
            try:
                write_json(self._site.run.attempt(number).environment(self._site.index), facts)
            except OSError as error:  # noqa: PERF203 - a handful at most
                complain(f"environment.json cannot be written: {error}")
        if self._asked_tools or (self._python is not None and self._site.launch.device_kind not in _TOOLS):
            self._attempts.clear()
        return facts

    def _facts(self) -> dict[str, Any]:
        site = self._site
        return {
            "version": 2,
            "time": time.time(),
            "host": site.host,
            "address": self.address,
            "agent": {"version": __version__, "python": sys.version.split()[0], "executable": sys.executable},
            "python": self._python or {"executable": site.launch.python},
            "snapshot": site.launch.snapshot_digest,
            **read_host(),
            "variables": relevant_variables(self._env),
            "device_kind": site.launch.device_kind,
            "visible_devices": list(site.launch.devices_of(site.index)),
            "devices": [
                *parse_nvidia_devices(self._answers.get("nvidia", "")),
                *parse_amd_devices(self._answers.get("amd", "")),
            ],
        }


def parse_nvidia_devices(text: str) -> list[dict[str, Any]]:
    """What `nvidia-smi --query-gpu` said; lines that are no device are left out."""
    rows = ([part.strip() for part in line.split(",")] for line in text.splitlines())
    return [
        {"id": row[0], "name": row[1], "memory_bytes": int(row[2]) << 20, "driver": row[3], "uuid": row[4]}
        for row in rows
        if len(row) == len(("index", "name", "memory", "driver", "uuid")) and row[2].isdigit()
    ]


def parse_amd_devices(text: str) -> list[dict[str, Any]]:
    """What `rocm-smi --json` said; [] where it said nothing."""
    try:
        cards = json.loads(text)
    except ValueError:
        return []
    driver = cards.get("system", {}).get("Driver version")
    return [
        {
            "id": name.removeprefix("card"),
            "name": card.get("Card Series") or card.get("Card series") or "",
            "memory_bytes": int(card.get("VRAM Total Memory (B)") or 0),
            "driver": driver,
            "uuid": card.get("GUID"),
        }
        for name, card in sorted(cards.items())
        if name.startswith("card")
    ]
