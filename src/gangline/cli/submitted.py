"""What `gangline submit` says: what was packed and queued, or what the backend would get.

Pure.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gangline.cli.describe import describe_code, num_ranks
from gangline.cli.nextsteps import next_commands
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, visible
from gangline.domain.spec import EntryKind, RunSpec
from gangline.wire.views import CodeView, RunDetail

__all__ = ["list_keys", "parse_files", "render_dry_run", "render_launch", "render_submitted"]

_SECTIONS = frozenset({"resources", "environment", "checkpoint", "restarts", "stop"})

_LABEL = 8


def render_submitted(run: RunDetail, terminal: Terminal) -> list[str]:
    """The run's id, what was packed and what was left out by which rule, and what to do next."""
    gang = f"{render_count(run['nodes'], 'node')} x {render_count(run['procs_per_node'], 'rank')}"
    total = f" = {num_ranks(run)} ranks" if run["nodes"] > 1 else ""
    if (script := (run["spec"].get("slurm") or {}).get("script")) is not None:
        gang, total = f"{visible(script)} as it asks", ""
    head = f"{terminal.heading(run['id'])} {run['phase']}: {gang}{total} in pool {visible(run['pool'])}"
    code = describe_code(run["code"]) if run["code"] else []
    commands = next_commands(run)
    width = max(len(command) for command, _ in commands)
    steps = [f"{command:<{width}}  {terminal.paint(text, dim=True)}" for command, text in commands]
    return [head, *_block("packed", code, terminal), *_block("next", steps, terminal)]


def render_dry_run(
    spec: RunSpec, code: Mapping[str, Any], sources: Mapping[str, Sequence[str]], terminal: Terminal
) -> list[str]:
    """What would run, how, and from where each value comes; what would be packed and left out.

    Args:
        spec: complete, as it would be sent.
        code: as `CodeView`.
        sources: keys that each source sets, later ones winning; all other keys have their defaults.
    """
    ranks = spec.resources.procs_per_node or spec.resources.gpus_per_node or 1
    nodes = spec.resources.nodes
    gang = f"{render_count(nodes, 'node')} x {render_count(ranks, 'rank')}" + (
        f" = {nodes * ranks} ranks" if nodes > 1 else ""
    )
    words = [*(["-m"] if spec.entry_kind is EntryKind.MODULE else []), spec.entry, *spec.args]
    return [
        terminal.heading("Nothing was queued. This would run:"),
        *_block("run", [visible(shlex.join(_without_secrets(words, spec.environment.env)))], terminal),
        *_block("gang", [f"{gang} in pool {visible(spec.pool)}"], terminal),
        *_block("python", [visible(spec.environment.python or f"that of pool {spec.pool}")], terminal),
        *_block("packed", describe_code(cast("CodeView", code)), terminal),
        *_block("set by", [f"{visible(name)}: {', '.join(keys)}" for name, keys in _winning(sources)], terminal),
    ]


def list_keys(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key that a layer of a spec sets, dotted."""
    found = []
    for key, value in mapping.items():
        if key == "min_nodes" and value is None:  # comes along with `nodes`
            continue
        inner = isinstance(value, Mapping) and not prefix and key in _SECTIONS
        found += list_keys(value, f"{key}.") if inner else [f"{prefix}{key}"]
    return found


def parse_files(launch: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend would get, with its JSON files as what they hold."""
    files = {
        path: json.loads(text) if path.endswith(".json") else text for path, text in launch.get("files", {}).items()
    }
    return {**launch, "files": files}


def _winning(sources: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Each source with the keys that no later one sets."""
    names = list(sources)
    later = {name: {key for after in names[i + 1 :] for key in sources[after]} for i, name in enumerate(names)}
    kept = [(name, [key for key in sources[name] if key not in later[name]]) for name in names]
    return [(name, keys) for name, keys in kept if keys]


def render_launch(launch: Mapping[str, Any], terminal: Terminal) -> list[str]:
    """What the backend would be given, without secrets: a command for each node, variables, files, the rest as JSON."""
    launch = _mask(launch)
    commands = launch.get("commands", ())
    known = {"backend", "commands", "env", "files"}
    rest = {key: value for key, value in launch.items() if key not in known}
    lines = [f"backend {visible(str(launch.get('backend', '-')))}"]
    for node, command in enumerate(commands):
        lines.append(f"{terminal.heading(f'node {node}')}: {visible(shlex.join(command))}")
    for name, value in sorted(launch.get("env", {}).items()):
        lines.append(f"{terminal.heading('env')} {visible(name)}={visible(shlex.quote(value))}")
    for path, text in sorted(launch.get("files", {}).items()):
        shown = text if isinstance(text, str) else json.dumps(text, indent=2)
        lines += [f"{terminal.heading('file')} {visible(path)}", *_quote(shown)]
    return [*lines, *json.dumps(rest, indent=2).split("\n")] if rest else lines


def _mask(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same without what looks secret; `--json` has it."""
    files = [file["env"] for file in launch.get("files", {}).values() if isinstance(file, Mapping) and "env" in file]
    masked: Mapping[str, Any] = _without_secrets(launch, launch.get("env", {}), *files)
    return masked


def _without_secrets(value: Any, *environments: Mapping[str, str]) -> Any:  # noqa: ANN401 - as it comes
    from gangline.domain.redact import Redactor, secret_values  # noqa: PLC0415 - a submit shows no launch, and waits

    return Redactor(secret_values(*environments)).value(value)


def _block(title: str, lines: Sequence[str], terminal: Terminal) -> list[str]:
    titles = [title, *[""] * len(lines)]
    return [f"{terminal.paint(f'{name:<{_LABEL}}', dim=True)}{line}" for name, line in zip(titles, lines, strict=False)]


def _quote(text: str) -> list[str]:
    return [f"  {line}" for line in visible(text, multiline=True).rstrip("\n").split("\n")]
