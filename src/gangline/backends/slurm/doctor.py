"""Examines one Slurm pool: everything that a run will need there, and what to do where it is not as it should be.

Everything is asked over the pool's own bridge, so that what is found is what runs will find.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gangline.backends.slurm.link import Hello, Link, Ran
from gangline.backends.slurm.options import merge_options
from gangline.backends.slurm.ssh import reach_of
from gangline.backends.slurm.sshconfig import fetch_config, takes_any_key
from gangline.domain.errors import GanglineError
from gangline.domain.pool import Finding, SlurmPool, Verdict
from gangline.domain.spec import SlurmOptions
from gangline.domain.version import VERSION

__all__ = ["examine", "parse_config", "render_deep"]

_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_ASK_S = 30.0
_DEEP_S = 150.0
_DEEP_WAIT_S = 60
"""How long the job of a deep examination may wait for a node."""
_FEW_BYTES = 5_000_000_000
_LARGE_SKEW_S, _SKEW_S = 60.0, 2.0
_SHORT_AGE_S = 60
_LOCAL_FILES = frozenset({"tmpfs", "ramfs", "ext2/ext3", "xfs", "btrfs", "overlayfs", "zfs"})
"""File systems that usually belong to one machine alone, in the words of `stat -f`."""


def examine(pool: SlurmPool, link: Link, *, home: Path, deep: bool) -> list[Finding]:
    """All that is found; where there is no connection, that alone.

    Args:
        deep: also have a node of the cluster look at the work folder, by a tiny job that may have to wait.
    """
    link.retry()
    began = time.monotonic()
    try:
        hello = link.hello()
    except GanglineError as error:
        why = f"{error.what}. {error.why}".rstrip(". ")
        return [Finding(check="connection", verdict=Verdict.FAILED, text=f"{why}.", fix=error.fix)]
    found = [_connection(pool, hello, home, time.monotonic() - began), _clock(hello)]
    looks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _commands(link),
        lambda: _python(pool, link, hello),
        lambda: _work(pool, link, is_seen=deep),
    ]
    told_by_controller: list[tuple[Callable[[], Iterator[Finding]], Sequence[str]]] = [
        (lambda: _partitions(pool, link), ("partitions",)),
        (lambda: _settings(pool, link), ("accounting", "limits")),
        *([(lambda: _node(pool, link), ("compute node",))] if deep else []),
    ]
    looks += [lambda one=one: _if_answered(found, *one) for one in told_by_controller]  # type: ignore[misc]
    for look in looks:
        try:
            found += look()
        except GanglineError as error:  # noqa: PERF203 - each look has its own end
            found.append(Finding(check="connection", verdict=Verdict.FAILED, text=str(error)))
            break
    return found


def _if_answered(
    found: Sequence[Finding], look: Callable[[], Iterator[Finding]], checks: Sequence[str]
) -> Iterator[Finding]:
    """What the controller says; where it says nothing, that has its line, and this is not checked."""
    failed = [one.check for one in found if one.check in {"commands", "controller"} and one.verdict is Verdict.FAILED]
    if not failed:
        yield from look()
        return
    why = "the controller gives no answer" if "controller" in failed else "commands are missing"
    yield from (Finding(check=check, verdict=Verdict.UNCHECKED, text=f"Not checked, as {why}.") for check in checks)


def _ok(check: str, text: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, text=text)


def _warn(check: str, text: str, fix: str) -> Finding:
    return Finding(check=check, verdict=Verdict.WARNING, text=text, fix=fix)


def _fail(check: str, text: str, fix: str) -> Finding:
    return Finding(check=check, verdict=Verdict.FAILED, text=text, fix=fix)


def _connection(pool: SlurmPool, hello: Hello, home: Path, took_s: float) -> Finding:
    who = f"{hello.user} on {hello.host}"
    reach = reach_of(pool, home)
    if reach is None:
        return _ok("connection", f"{who}, this machine.")
    config = fetch_config(reach, os.environ)
    via = f" through {config['proxyjump']}" if config.get("proxyjump", "none") != "none" else ""
    text = f"{who}, by ssh to {config.get('hostname', reach.host)}{via} ({took_s:.1f} s)"
    if takes_any_key(config):
        fix = (
            "Remove `StrictHostKeyChecking no` from your ssh configuration; Gangline takes no changed key all the same."
        )
        return _warn("connection", f"{text}; your configuration takes unknown host keys unseen.", fix)
    return _ok("connection", f"{text}; its host key is known and was checked.")


def _clock(hello: Hello) -> Finding:
    offset_s = hello.clock_offset_s
    text = f"The login node's clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} this machine's."
    if abs(offset_s) < _SKEW_S:
        return _ok("clock", text)
    fix = "Have both set by NTP: times of events and logs are off by so much."
    return (_fail if abs(offset_s) > _LARGE_SKEW_S else _warn)("clock", text, fix)


def _commands(link: Link) -> Iterator[Finding]:
    said = {name: _ask(link, name, "--version") for name in _COMMANDS}
    missing = [name for name, ran in said.items() if ran.rc != 0]
    versions = sorted({_first(ran).split()[-1] for ran in said.values() if ran.rc == 0})
    if missing:
        why = _first(said[missing[0]])
        fix = "They are looked for on the PATH of a login shell; add Slurm's folder there (module load slurm)."
        yield _fail("commands", f"{', '.join(missing)} cannot be used: {why}", fix)
    elif len(versions) > 1:
        yield _warn("commands", f"They are of different versions: {', '.join(versions)}.", "Look at PATH there.")
    else:
        yield _ok("commands", f"{', '.join(_COMMANDS)}: Slurm {versions[0]}.")
    if "scontrol" in missing:
        return
    ping = _ask(link, "scontrol", "ping")
    up = " is UP" in ping.out
    text = _first(ping) or "scontrol ping says nothing"
    fix = "Nothing can be submitted while the controller is down; runs wait, and those that run go on."
    yield _ok("controller", f"{text}.") if up else _fail("controller", f"{text}.", fix)


def _python(pool: SlurmPool, link: Link, hello: Hello) -> Iterator[Finding]:
    try:
        path, version = link.python(pool.python)
    except GanglineError as error:
        yield _fail("python", str(error), "Name one >= 3.10 with `python:` in pools.yaml.")
        return
    bridge = "" if hello.python == path else f"; the bridge runs on {hello.python} ({hello.python_version})"
    yield _ok("python", f"{path} {version} runs the agents, which are those of this server ({VERSION}){bridge}.")


def _work(pool: SlurmPool, link: Link, *, is_seen: bool) -> Iterator[Finding]:
    """The work folder on the login node; whether a compute node sees it is found out elsewhere."""
    found = link.probe(pool.work)
    if not found.exists or not found.writable:
        what = "cannot be written to" if found.exists else "is not there and cannot be made"
        fix = "Name a folder of yours with `work:` that login and compute nodes share."
        yield _fail("work folder", f"{pool.work} {what}: {found.why_not}.", fix)
        return
    kind = _ask(link, "stat", "-f", "-c", "%T", "--", pool.work).out.strip()
    text = f"{pool.work} can be written to; {found.free_bytes / 1e9:.1f} GB are free ({kind or 'unknown'} files)."
    if found.free_bytes < _FEW_BYTES:
        yield _warn("work folder", text, "Make room, or move it: logs and checkpoints of runs lie there.")
    elif kind in _LOCAL_FILES and not is_seen:
        fix = f"See whether nodes share it: gangline pools doctor {pool.name} --deep."
        yield _warn("work folder", f"{text} Such files are often of one machine alone.", fix)
    else:
        yield _ok("work folder", text)


def _partitions(pool: SlurmPool, link: Link) -> Iterator[Finding]:
    ran = _ask(link, "sinfo", "--noheader", "--format=%R|%a|%l|%D|%G|%P")
    rows = [line.strip().split("|") for line in ran.out.splitlines() if line.count("|") == 5]  # noqa: PLR2004 - as asked
    names = list(dict.fromkeys(row[0] for row in rows))
    if not names:
        yield _fail("partitions", f"sinfo lists none: {_first(ran)}", "Ask the site which ones you may use.")
        return
    wanted = [name for name in (pool.defaults.partition or "").split(",") if name]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        fix = f"Choose among: {', '.join(names)}."
        yield _fail("partitions", f"There is no partition `{unknown[0]}`, which `defaults` names.", fix)
        return
    has_default = any(row[5].endswith("*") for row in rows)
    mine = [row for row in rows if not wanted or row[0] in wanted]
    listed = "; ".join(f"{name} ({_nodes_of(mine, name)})" for name in dict.fromkeys(row[0] for row in mine))
    if not wanted and not has_default:
        fix = f"Name one in `defaults: {{partition: …}}`, or with each run: {', '.join(names)}."
        yield _warn("partitions", f"No partition is the cluster's default: {listed}.", fix)
    elif all(row[1] != "up" for row in mine):
        yield _fail("partitions", f"None of them is up: {listed}.", "Choose another one, or ask the site.")
    else:
        yield _ok("partitions", f"{listed}.")


def _nodes_of(rows: list[list[str]], name: str) -> str:
    mine = [row for row in rows if row[0] == name]
    gres = sorted({re.sub(r"\(.*?\)", "", row[4]) for row in mine} - {"(null)", ""})
    count = sum(int(row[3]) for row in mine if row[3].isdigit())
    limit = mine[0][2]
    state = "" if mine[0][1] == "up" else f", {mine[0][1]}"
    return f"{count} nodes{', ' + ' '.join(gres) if gres else ''}, time limit {limit}{state}"


def _settings(pool: SlurmPool, link: Link) -> Iterator[Finding]:
    config = parse_config(_ask(link, "scontrol", "show", "config").out)
    yield from _accounting(pool, link, config)
    age_s = int((re.match(r"\d+", config.get("MinJobAge", "")) or ["300"])[0])
    if age_s and age_s < _SHORT_AGE_S and pool.poll_s * 3 > age_s:
        text = f"The cluster forgets ended jobs after {age_s} s (MinJobAge), and is asked every {pool.poll_s:g} s."
        yield _warn("limits", text, f"Set `poll:` to {max(0.2, age_s / 4):g}s or less.")
    else:
        shown = {"MinJobAge": "ended jobs are known for", "MaxJobCount": "most jobs", "KillWait": "SIGTERM to SIGKILL"}
        told = [f"{text} {config[key]}" for key, text in shown.items() if key in config]
        yield _ok("limits", f"{', '.join(told) or 'the controller names none'}.")


def _accounting(pool: SlurmPool, link: Link, config: Mapping[str, str]) -> Iterator[Finding]:
    sacct = _ask(link, "sacct", "--noheader", "--parsable2", "--allocations", "--format=jobid", "--starttime=now")
    if sacct.rc == 0:
        yield _ok("accounting", f"sacct answers ({config.get('AccountingStorageType', 'type unknown')}).")
    else:
        text = (
            f"sacct cannot be used ({_first(sacct)}); ends of jobs are read from the controller and the agents' files."
        )
        fix = "Nothing has to be done; who cancelled a job may stay unknown."
        yield _warn("accounting", text, fix)
    if pool.defaults.account is None and pool.defaults.qos is None:
        return
    asked = (
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "assoc",
        f"user={link.hello().user}",
        "format=account,qos",
    )
    rows = [line.split("|") for line in _ask(link, *asked).out.splitlines() if "|" in line]
    accounts = sorted({row[0] for row in rows})
    if accounts and pool.defaults.account not in {None, *accounts}:
        fix = f"Your accounts there: {', '.join(accounts)}."
        yield _fail("accounting", f"You have no account `{pool.defaults.account}`, which `defaults` names.", fix)
    qos = sorted({name for row in rows for name in row[1].split(",") if name})
    if qos and pool.defaults.qos not in {None, *qos}:
        yield _warn("accounting", f"You may not use QOS `{pool.defaults.qos}`.", f"Yours are: {', '.join(qos)}.")


def _node(pool: SlurmPool, link: Link) -> Iterator[Finding]:
    """What one node of the cluster sees of the work folder."""
    mark = secrets.token_hex(8)
    name = f"doctor/{mark}"
    link.write(name, mark.encode())
    ran = link.run(render_deep(pool, f"{pool.work}/{name}", mark), timeout_s=_DEEP_S)
    back = _ask(link, "cat", "--", f"{pool.work}/{name}.back").out.strip()
    _ask(link, "rm", "-f", "--", f"{pool.work}/{name}", f"{pool.work}/{name}.back")
    said = dict(line.partition("=")[::2] for line in ran.out.splitlines() if "=" in line)
    host = said.get("host", "a node")
    if ran.rc is None or "host" not in said:
        fix = "Where the cluster is full, try later; otherwise set partition and account in `defaults`."
        yield _fail("compute node", f"No job could be run: {_last(ran)}", fix)
    elif said.get("seen") != mark:
        fix = "Name a folder with `work:` that compute nodes mount, under the same path."
        yield _fail("compute node", f"{host} does not see {pool.work}.", fix)
    elif back != host:
        fix = "Look at the mount options there, and at who may write."
        yield _fail("compute node", f"What {host} writes into {pool.work} is not seen on the login node.", fix)
    else:
        yield _ok(
            "compute node", f"{host} reads and writes {pool.work}; python3 there: {said.get('python') or 'none'}."
        )


_DEEP = """\
echo "host=$(uname -n)"
for pause in 0 1 2 4; do sleep $pause; [ -r "$1" ] && break; done
echo "seen=$(cat -- "$1")"
uname -n >"$1.back"
echo "python=$(python3 -c 'import platform; print(platform.python_version())')"
"""


def render_deep(pool: SlurmPool, path: str, mark: str) -> tuple[str, ...]:
    """The command that has a node read and write a file."""
    options: SlurmOptions = merge_options(pool.defaults, SlurmOptions())
    named = ("partition", "account", "qos", "constraint", "reservation")
    wishes = [f"--{name}={getattr(options, name)}" for name in named if getattr(options, name) is not None]
    fixed = (
        "--nodes=1",
        "--ntasks=1",
        "--time=2",
        f"--immediate={_DEEP_WAIT_S}",
        f"--job-name=gangline-doctor-{mark[:6]}",
    )
    return ("srun", *fixed, *wishes, "--chdir=/", "/bin/sh", "-c", _DEEP, "gangline-doctor", path)


def parse_config(out: str) -> dict[str, str]:
    """`scontrol show config` by its keys."""
    pairs = (line.partition("=") for line in out.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _ask(link: Link, *argv: str) -> Ran:
    return link.run(argv, timeout_s=_ASK_S)


def _first(ran: Ran) -> str:
    lines = (ran.out + ran.err).strip().splitlines()
    return lines[0][:200] if lines else ("it did not answer in time" if ran.rc is None else f"it ended with {ran.rc}")


def _last(ran: Ran) -> str:
    lines = (ran.out + ran.err).strip().splitlines()
    return lines[-1][:300] if lines else _first(ran)
