"""MPI: the agents start the ranks, as always; Open MPI tells them who and where they are.

`mpirun` stands beside the ranks of the first node, its `orted` beside those of every other machine. What these start is
one stand-in for each rank, which hands its environment over (the address of the PMIx server, the name of the job) and
waits for the end of the rank. A rank that the agent starts with that environment is, to Open MPI, the stand-in. So
logs, blame, stacks and ends are the agent's own, and no shell on other machines is needed: `mpirun` asks for an `orted`
through a file of the attempt's folder. Standard library only.

Source: docs/adr/0037-strategies-with-company.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.starter import RankStart
from gangline.agent.strategies.company import Child, Company, CompanyFault, hold_scratch, scratch_path, take_scratch
from gangline.agent.strategies.deepspeed import HOSTFILE, render_hostfile
from gangline.agent.strategies.rules import Rules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms
    from gangline.agent.site import Site

__all__ = ["RULES", "MpiCompany", "MpiRules", "render_mpirun", "render_places"]

_HANDED = ("OMPI_", "PMIX_", "PRTE_")
_STAND_IN = (
    'p="$1/rank-$OMPI_COMM_WORLD_RANK"; umask 077; env -0 >"$p.tmp" && mv "$p.tmp" "$p.env" || exit 1; '
    'read code <"$p.end" && exit "$code"; exit 1'
)
"""Program of `sh`; its first argument is the folder."""
_ASK = """#!/bin/sh
# Open MPI calls this for its process on another machine: HOST COMMAND…; that machine's agent starts it.
host=$1; shift
printf '%s' "$*" >{folder}/orted-"$host".tmp && mv {folder}/orted-"$host".tmp {folder}/orted-"$host".sh
"""
_HERE = "localhost"


class MpiRules(Rules):
    """See the module."""

    lost_code = 195  # Open MPI 4.1; seen when `mpirun` or an `orted` was killed, and after `MPI_Abort` of another rank

    def find_refusal(self, launch: LaunchSpec) -> str:
        path = launch.env.get("PATH") or os.environ.get("PATH")
        if shutil.which("mpirun", path=path) is not None:
            return ""
        return "there is no `mpirun`: install Open MPI (Debian: apt install openmpi-bin), or load its module"

    def files(self, launch: LaunchSpec, terms: AttemptTerms) -> dict[str, str]:
        return {HOSTFILE: render_hostfile(terms, launch.procs_per_node)}

    def company(self, site: Site, terms: AttemptTerms) -> Company:
        return MpiCompany(site, terms)


class MpiCompany(Company):
    """`mpirun` or `orted`, where one is due, and the word of the stand-ins of this node's ranks."""

    def __init__(self, site: Site, terms: AttemptTerms) -> None:
        super().__init__()
        self.ready = False
        self._site, self._terms = site, terms
        attempt = site.run.attempt(terms.attempt)
        self._folder = attempt.path / "mpi"
        self._log = attempt.node(site.index) / "mpi.log"
        self._ranks = terms.shape.ranks_of(site.index)
        self._handed: dict[int, dict[str, str]] = {}
        self._child: Child | None = None
        self._scratch: Path | None = None
        self._env = site.environment_of(self._ranks[0], terms)

    def begin(self) -> None:
        if self._site.index == self._terms.shape.nodes[0]:
            self._start_mpirun()

    def look(self) -> None:
        self._answer_request()
        for rank in self._ranks:
            if rank not in self._handed and (found := self._take(rank)) is not None:
                self._handed[rank] = found
        self.ready = len(self._handed) == len(self._ranks)
        child = self._child
        if child is not None and child.ended() and not (self.ready and child.ended_well()):
            said = child.last_words()
            raise CompanyFault(f"{self._name()} has ended ({child.ended()}){': ' if said else ''}{said}")

    def killed(self) -> str:
        """On a failure it ends by itself, with an exit code."""
        child = self._child
        return f"{self._name()} was killed ({child.ended()})" if child is not None and child.was_killed() else ""

    def roots(self) -> frozenset[int]:
        return frozenset() if self._child is None else frozenset({self._child.pid})

    def adapt(self, start: RankStart) -> RankStart:
        return replace(start, env={**start.env, **self._handed[start.rank]})

    def rank_ended(self, rank: int, exit_code: int | None) -> None:
        """Its stand-in may go, too; after a failure the whole attempt ends, and `mpirun` need not see to that."""
        if exit_code != 0:
            return
        with suppress(OSError):  # nobody reads: the stand-in is gone
            end = os.open(self._folder / f"rank-{rank}.end", os.O_WRONLY | os.O_NONBLOCK)
            os.write(end, b"0\n")
            os.close(end)

    def close(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _name(self) -> str:
        return "`mpirun`" if self._site.index == self._terms.shape.nodes[0] else "`orted`"

    def _start_mpirun(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for rank in range(self._terms.shape.world_size):
            os.mkfifo(self._folder / f"rank-{rank}.end", 0o600)
        places = self._folder / "places"
        places.write_text(render_places(self._terms), encoding="ascii")
        self._scratch = scratch = self._scratch_path()
        take_scratch(scratch)
        ask = scratch / "ask"
        ask.write_text(_ASK.format(folder=shlex.quote(str(self._folder))), encoding="utf-8")
        num_ranks = self._terms.shape.world_size
        self._start(render_mpirun(num_ranks, places=places, ask=ask, scratch=scratch, to=self._folder))

    def _answer_request(self) -> None:
        """Start the `orted` that `mpirun` has asked this machine for; the first agent of a machine does so."""
        terms = self._terms
        address = terms.addresses[terms.shape.nodes.index(self._site.index)]
        first = terms.shape.nodes[list(terms.addresses).index(address)]
        if self._child is not None or first != self._site.index:
            return
        with suppress(FileNotFoundError):
            command = (self._folder / f"orted-{address}.sh").read_text(encoding="utf-8", errors="surrogateescape")
            self._scratch = self._scratch_path()
            hold_scratch(self._scratch)  # where machines share even /tmp, `mpirun` is at work there
            self._start(["/bin/sh", "-c", f"exec {command.strip()}"])

    def _start(self, argv: list[str]) -> None:
        env = {**self._env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self._child = Child(argv, env=env, cwd=str(self._site.workdir), log=self._log)

    def _scratch_path(self) -> Path:
        return scratch_path(self._site.run, self._site.launch.launch)

    def _take(self, rank: int) -> dict[str, str] | None:
        """What the stand-in of a rank has handed over; None: nothing yet."""
        path = self._folder / f"rank-{rank}.env"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)  # it holds all of the run's environment
        pairs = (os.fsdecode(line).partition("=") for line in text.split(b"\0"))
        return {name: value for name, _, value in pairs if name.startswith(_HANDED)}


def render_places(terms: AttemptTerms) -> str:
    """A line for each machine: how many ranks it holds, which Open MPI numbers in this order. Pure.

    Raises:
        CompanyFault: the agents of one machine do not stand together, so that Open MPI would number ranks otherwise.
    """
    here, addresses = terms.addresses[0], terms.addresses
    machines = list(dict.fromkeys(addresses))
    if sorted(addresses, key=machines.index) != list(addresses):
        raise CompanyFault("nodes of one machine have to follow one another, and do not: " + ", ".join(addresses))
    slots = {address: addresses.count(address) * terms.shape.procs_per_node for address in machines}
    return "".join(f"{_HERE if address == here else address} slots={slots[address]}\n" for address in machines)


def render_mpirun(num_ranks: int, *, places: Path, ask: Path, scratch: Path, to: Path) -> list[str]:
    """The command line of `mpirun`. Pure.

    Args:
        places: file of `render_places`.
        ask: script that asks for an `orted`.
        scratch: where Open MPI keeps its sockets.
        to: folder of the attempt where stand-ins meet agents.
    """
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": f"/bin/sh {ask}",
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",
        "orte_tmpdir_base": str(scratch),
    }
    words = [word for name, value in settings.items() for word in ("--mca", name, value)]
    argv = ["mpirun", *words, "--map-by", "slot", "--bind-to", "none", "--hostfile", str(places), "-np", str(num_ranks)]
    return [*argv, "/bin/sh", "-c", _STAND_IN, "stand-in", str(to)]


RULES = MpiRules()
