"""What a node is: `environment.json`. The user's own interpreter is asked, at low priority, while ranks run.

Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gangline import __version__
from gangline.agent.loop import Loop
from gangline.agent.site import Site, complain
from gangline.rundir.files import write_json

__all__ = ["EnvironmentProbe", "parse_amd_devices", "parse_nvidia_devices"]

_LOWEST_PRIORITY = 19
_PATIENCE_S = 20.0
_LONGEST_ANSWER_BYTES = 4 << 20
_QUESTION = r"""
import json, os, re, sys
found = {}
for folder in sys.path:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        continue
    for name in names:
        match = re.fullmatch(r"(.+?)-([^-]+?)(?:-py[\d.]+)?\.(?:dist-info|egg-info)", name)
        if match:
            found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
torch = {}
for folder in sys.path:
    try:
        with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
            torch = dict(re.findall(r"^(cuda|hip|git_version|__version__)\b[^=]*= *'([^']*)'", file.read(), re.M))
        break
    except OSError:
        continue
print(json.dumps({
    "executable": sys.executable, "version": sys.version.split()[0], "implementation": sys.implementation.name,
    "prefix": sys.prefix, "base_prefix": sys.base_prefix, "packages": dict(sorted(found.items())), "torch": torch,
}))
"""
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

    def __init__(self, site: Site, loop: Loop, *, helpers: set[int]) -> None:
        self._site = site
        self._loop = loop
        self._helpers = helpers
        """Pids of the children that ask, so that ending an attempt spares them."""
        self._answers: dict[str, str] = {}
        self._children: dict[str, Any] = {}
        self._asked = False
        self._attempts: set[int] = set()

    @property
    def is_done(self) -> bool:
        """Every question has been answered, or given up."""
        return self._asked and not self._children

    def expect(self, attempt: int) -> None:
        """`environment.json` is to be written for this attempt: now, or when the answers are there."""
        self._attempts.add(attempt)
        if self.is_done:
            self._write()

    def ask(self) -> None:
        """Start asking, once."""
        if self._asked:
            return
        self._asked = True
        questions = {"python": [self._site.launch.python, "-I", "-c", _QUESTION]}
        kind = self._site.launch.device_kind
        if kind in _TOOLS:
            questions[kind] = _TOOLS[kind]
        for name, argv in questions.items():
            self._spawn(name, argv)
        if not self._children:
            self._write()

    def finish(self) -> None:
        """Wait for what is still to come, for a while; for an agent that is about to leave."""
        deadline = time.monotonic() + _PATIENCE_S
        if self._attempts:
            self.ask()
        while self._attempts and not self.is_done and time.monotonic() < deadline:
            for name in list(self._children):
                self._read(name)
            time.sleep(0.005)
        for child in self._children.values():
            child.kill()
            child.wait()
        self._children.clear()
        if self._attempts:
            self._write()

    def _spawn(self, name: str, argv: list[str]) -> None:
        import subprocess  # noqa: PLC0415 - nothing else of the agent needs it

        self._answers[name] = ""
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            complain(f"{argv[0]} cannot be asked: {error}")
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST_PRIORITY)
        assert child.stdout is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(child.stdout.fileno(), False)
        self._children[name] = child
        self._helpers.add(child.pid)
        self._loop.watch(child.stdout, self._reader(name))

    def _reader(self, name: str) -> Callable[[], None]:
        return lambda: self._read(name)

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
        self._helpers.discard(child.pid)
        if not self._children:
            self._write()

    def _write(self) -> None:
        facts = self._facts()
        for number in sorted(self._attempts):
            try:
                write_json(self._site.run.attempt(number).environment(self._site.index), facts)
            except OSError as error:  # noqa: PERF203 - a handful at most
                complain(f"environment.json cannot be written: {error}")
        self._attempts.clear()

    def _facts(self) -> dict[str, Any]:
        site, system = self._site, os.uname()
        python: dict[str, Any] = {"executable": site.launch.python}
        with suppress(ValueError):
            python = json.loads(self._answers.get("python", ""))
        return {
            "version": 1,
            "time": time.time(),
            "host": site.host,
            "address": site.address,
            "agent": {"version": __version__, "python": sys.version.split()[0], "executable": sys.executable},
            "python": python,
            "snapshot": site.launch.snapshot_digest,
            "kernel": f"{system.sysname} {system.release}",
            "machine": system.machine,
            "cpus": os.cpu_count(),
            "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
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
