"""`gangline rerun`: a new run with the spec and the code of another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import connection
from gangline.cli.differences import render_difference_lines
from gangline.cli.options import json_option
from gangline.cli.queued import check_after, finish
from gangline.cli.specoptions import ChangeCommand, changes_of, make_spec_options, rest_of
from gangline.cli.terminal import say
from gangline.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["command"]

_EPILOG = """Examples:

\b
  gangline rerun llama-7k3q                      # once more, from the beginning
  gangline rerun llama-7k3q --nodes 4 --env DEBUG=1
  gangline rerun llama-7k3q -- --lr 1e-4         # other arguments
  gangline rerun --last-failed -F                # the newest failed run of this project
  gangline rerun llama-7k3q --from-checkpoint 200"""


class _RerunCommand(ChangeCommand):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return ["[OPTIONS] RUN [-- ARGS...]"]


@click.command("rerun", cls=_RerunCommand, epilog=_EPILOG)
@click.argument("run", metavar="RUN", required=False)
@click.option("--last-failed", is_flag=True, help="Take the newest failed run of this project.")
@click.option("-F", "--follow", is_flag=True, help="Follow the output; exit with the run's code. Ctrl-C detaches.")
@click.option("--wait", is_flag=True, help="Return when the run is over, with its code.")
@json_option()
@click.pass_context
def command(ctx: click.Context, /, *, run: str | None, last_failed: bool, **options: Any) -> int:  # noqa: ANN401 - the spec's own options come on top
    """Run once more: a new run with the spec and the code of RUN.

    The code is the stored snapshot of RUN, not the working tree. The new run starts afresh, whatever RUN has saved;
    --from-checkpoint takes a checkpoint of it (a step, or `latest`). Options change the spec; what stands behind `--`
    replaces the arguments. What is other than in RUN is said.
    """
    from gangline.client.again import send_rerun  # noqa: PLC0415 - once there is something to send

    after = check_after(follow=options["follow"], wait=options["wait"], detach=False, as_json=options["as_json"])
    changes, args = changes_of(options), rest_of(ctx)
    client = connection.connect()
    original = client.run(_which(client, run, last_failed=last_failed))
    made = send_rerun(client, original["id"], changes=changes, args=args)
    lines = render_difference_lines([original["spec"], made["spec"]])
    said = "\n".join(["", *lines]) if lines else " in everything"
    say(f"{made['id']} is a rerun of {original['id']}, the same{' but for:' if lines else ''}{said}", err=True)
    return finish(client, made, after)


command.params += make_spec_options()


def _which(client: Client, run: str | None, *, last_failed: bool) -> str:
    from gangline.client.again import find_last_failed  # noqa: PLC0415 - as above

    if last_failed and run is not None:
        raise InvalidRequest(f"--last-failed takes no RUN, and `{run}` is one", fix="Keep one of them.")
    if last_failed:
        return find_last_failed(client, Path.cwd())["id"]
    if run is None:
        raise InvalidRequest(
            "There is no run to run again", fix="Name one: gangline rerun RUN; or gangline rerun --last-failed"
        )
    return run
