"""`gangline submit`: one training run, from a line of options, a file, or both."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import connection
from gangline.cli.argv import Entry, SubmitLine, file_args, parse_entry
from gangline.cli.failure import EXIT_INTERRUPTED
from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.queued import check_after, finish
from gangline.cli.specoptions import SubmitCommand, flag_table, make_spec_options, spec_values, submit_line
from gangline.cli.templates import RUN_FILE, Template, find_template
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import visible
from gangline.domain.errors import InvalidRequest
from gangline.domain.naming import LOCAL
from gangline.domain.spec import RunSpec
from gangline.wire.flags import apply_flags, defaults_from_project
from gangline.wire.spec import list_keys, merge_layers, partial_from_yaml, spec_from_mapping, spec_to_mapping

if TYPE_CHECKING:
    from gangline.client.client import Client
    from gangline.client.submission import Prepared
    from gangline.wire.views import RunDetail

__all__ = ["command"]

_EPILOG = """Examples:

\b
  gangline submit train.py --lr 3e-4               # what stands after the script is the script's
  gangline submit --nodes 2 train.py -- --nodes 7  # whatever it is called
  gangline submit --gpus-per-node 8 -m package.train
  gangline submit -- ./train.sh --fast             # any program, once for each rank
  gangline submit -- "./prepare && ./train | tee log"  # one text: a line for bash, with pipefail
  gangline submit -f run.yaml --name second-try    # a run file; options win over it
  gangline submit -f run.yaml -- --lr 1e-4         # other arguments than the file's
  gangline submit --template gpt --follow          # something to try

`python train.py` means the script, run by that python. gangline.yaml in the project's root sets defaults."""


@click.command("submit", cls=SubmitCommand, epilog=_EPILOG)
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="YAML", help="Read the run from a file.")
@click.option("--template", metavar="NAME", help="Run one of those that `gangline template` lists, as it is.")
@click.option("-m", "_module", metavar="MODULE", expose_value=False, help="Run a module; what follows is its own.")
@click.option("-F", "--follow", is_flag=True, help="Follow the output; exit with the run's code. Ctrl-C detaches.")
@click.option("--wait", is_flag=True, help="Return when the run is over, with its code.")
@click.option("--detach", is_flag=True, help="Return at once; the default.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything; print what would be packed and run, and exactly what the backend would get.",
)
@json_option()
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:  # noqa: ANN401 - the spec's own options come on top
    """Run a script, module, notebook or command on a gang of ranks.

    Packs the project's files as they are now, checks everything, queues the run and returns. Options of gangline stand
    before the script; what stands after it belongs to the script, and one `--` between the two is dropped.
    """
    after = check_after(**{name: options[name] for name in ("follow", "wait", "detach", "as_json")})
    wanted = _build_spec(ctx, _source(options), spec_values(options))
    prepared = _prepare(wanted)
    client = connection.connect()
    if options["dry_run"]:
        return _print_dry_run(client, prepared, wanted.sources, as_json=after.as_json)
    return finish(client, _send(client, prepared), after)


command.params += make_spec_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to run, and which keys each source has set; later ones win."""

    spec: RunSpec
    sources: Mapping[str, Sequence[str]]
    template: Template | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The files that the line begins from."""

    file: Path | None
    defaults: Path | None
    """A template's own in place of the project's."""
    template: Template | None = None


def _source(options: Mapping[str, Any]) -> _Source:
    if not options["template"]:
        return _Source(file=options["file"], defaults=None)
    if options["file"]:
        raise InvalidRequest("--template contradicts --file", why="Each names what runs.", fix="Keep one of them.")
    template = find_template(options["template"])
    return _Source(file=template.folder / RUN_FILE, defaults=template.defaults, template=template)


def _build_spec(ctx: click.Context, source: _Source, values: dict[str, Any]) -> _Wanted:
    """Defaults of the project, then the file, then the command line; later ones win."""
    from gangline.snapshot.root import find_root  # noqa: PLC0415 - only here

    folder, line, file = Path.cwd(), submit_line(ctx), source.file
    asked_python = values["environment.python"]
    defaults = partial_from_yaml(source.defaults) if source.defaults else defaults_from_project(find_root(folder))
    from_file = partial_from_yaml(file) if file else {}
    defaults, from_file = _for_pool(values, defaults, from_file)
    layers = merge_layers(defaults, from_file)
    args = file_args(line, str(file), layers) if file else None
    if source.template and line.rest and not line.separated:
        raise InvalidRequest(
            f"`{line.rest[0]}` comes on top of --template {source.template.name}",
            why="A template brings its own script.",
            fix=f"For its arguments: gangline submit --template {source.template.name} -- {' '.join(line.rest)}",
        )
    if values["slurm.script"]:
        args = _script_args(line)
    if args is None:
        values = {**values, **_entry_values(parse_entry(line, flags=flag_table(ctx.command), folder=folder), values)}
        if values["pool"] not in {None, LOCAL} or (values["pool"] is None and layers.get("pool", LOCAL) != LOCAL):
            values["environment.python"] = asked_python  # `python train.py` names none of other machines
    mapping = apply_flags(layers, values)
    if args is not None:
        mapping["args"] = list(args)
    if not mapping.get("entry") and not (mapping.get("slurm") or {}).get("script"):
        raise _nothing_to_run(folder, file)
    sources = {
        "gangline.yaml": list_keys(defaults),
        str(file): list_keys(from_file),
        "command line": [
            *(key for key, value in values.items() if value not in (None, ())),
            *(["args"] if args else []),
        ],
    }
    return _Wanted(spec=spec_from_mapping(mapping), sources=sources, template=source.template)


def _for_pool(
    values: Mapping[str, Any], defaults: dict[str, Any], from_file: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Layers without what files say for Slurm, where the run goes to this machine.

    Without a default entry, too, where a batch script is what runs.
    """
    if values["slurm.script"]:
        defaults = {key: value for key, value in defaults.items() if key not in {"entry", "entry_kind", "args"}}
    if (values["pool"] or from_file.get("pool") or defaults.get("pool") or LOCAL) != LOCAL:
        return defaults, from_file
    if from_file.get("slurm"):
        say(f"note: options of Slurm in the file mean nothing in pool `{LOCAL}` and are left out", err=True)
    kept = [{key: value for key, value in layer.items() if key != "slurm"} for layer in (defaults, from_file)]
    return kept[0], kept[1]


def _script_args(line: SubmitLine) -> tuple[str, ...]:
    """Arguments of a batch script: what stands behind `--`.

    Raises:
        InvalidRequest: words stand without it.
    """
    if line.rest and not line.separated:
        raise InvalidRequest(
            f"`{line.rest[0]}` comes on top of --sbatch",
            why="A batch script takes the place of what runs.",
            fix=f"For its arguments: gangline submit --sbatch FILE -- {' '.join(line.rest)}",
        )
    return tuple(line.rest)


def _entry_values(entry: Entry | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the line says of the entry, as values of options; notes on it are said."""
    if entry is None:
        return {}
    for note in entry.notes:
        say(note, err=True)
    python = values["environment.python"] or entry.python
    found = {"entry": entry.entry, "entry_kind": entry.kind.value, "args": entry.args}
    return {**found, "environment.python": python}


def _nothing_to_run(folder: Path, file: Path | None) -> InvalidRequest:
    where = f": {file} names no script, module or command, and neither does the line" if file else ""
    scripts = sorted(path.name for path in folder.glob("*.py"))
    example = "train.py" if "train.py" in scripts or not scripts else scripts[0]
    forms = (f"submit {example} --lr 3e-4", "submit -m package.train", "submit -- ./train.sh", "submit -f run.yaml")
    begin = "" if scripts else "\nThere is no script here yet: `gangline init` writes one."
    return InvalidRequest(
        f"There is nothing to run{where}", fix="One of:\n" + "\n".join(f"  gangline {form}" for form in forms) + begin
    )


def _prepare(wanted: _Wanted) -> Prepared:
    from gangline.client.submission import prepare  # noqa: PLC0415 - imported once there is something to pack

    spec, root = wanted.spec, None
    if wanted.template:  # where it is installed may be ignored by whoever keeps the environment
        spec, root = replace(spec, include=(*spec.include, *wanted.template.names)), wanted.template.folder
        spec = replace(spec, name=spec.name or wanted.template.name)
    prepared = prepare(spec, root=root)
    for warning in prepared.warnings:
        say(f"note: {visible(warning)}", err=True)
    return prepared


def _send(client: Client, prepared: Prepared) -> RunDetail:
    from gangline.client.submission import create, upload  # noqa: PLC0415 - as above

    upload(client, prepared.packed)
    try:
        return create(prepared, client=client, command=["gangline", *sys.argv[1:]])
    except KeyboardInterrupt:
        say("interrupted; the run may have been submitted: `gangline ps` shows whether it was", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _print_dry_run(client: Client, prepared: Prepared, sources: Mapping[str, Sequence[str]], *, as_json: bool) -> int:
    from gangline.cli.dryrun import parse_files, render_dry_run, render_launch  # noqa: PLC0415 - a submit needs none

    launch = parse_files(client.check(spec_to_mapping(replace(prepared.spec, snapshot=None))))
    if as_json:
        echo_json(launch)
        return 0
    terminal, manifest = Terminal.from_stream(), prepared.packed.manifest
    code = {**manifest.code.to_dict(), "num_files": manifest.num_files, "size_bytes": manifest.size_bytes}
    echo_lines([*render_dry_run(prepared.spec, code, sources, terminal), "", *render_launch(launch, terminal)])
    return 0
