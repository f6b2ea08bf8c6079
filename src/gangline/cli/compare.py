"""`gangline compare`: what differs between runs, or between the workers of one."""

from __future__ import annotations

import click

from gangline.cli import connection
from gangline.cli.compared import render_code_diff, render_comparison, render_ranks
from gangline.cli.options import Whole, echo_json, echo_lines, json_option
from gangline.cli.terminal import Terminal
from gangline.domain.errors import InvalidRequest

__all__ = ["command"]


@click.command("compare")
@click.argument("runs", metavar="RUN [RUN]...", nargs=-1, required=True)
@click.option("--code", is_flag=True, help="Print the differences of the code, line by line, and nothing else.")
@click.option("--ranks", is_flag=True, help="Compare the workers of one RUN instead: environments, memory, step times.")
@click.option("--attempt", type=Whole(), metavar="N", help="With --ranks: that attempt; default: the newest.")
@json_option()
def command(*, runs: tuple[str, ...], code: bool, ranks: bool, attempt: int | None, as_json: bool) -> None:
    """Compare runs: spec, code, environment, metrics, and how they went.

    The others are compared with the first. Only what differs is shown.
    """
    _check(runs, code=code, ranks=ranks, attempt=attempt)
    client, terminal = connection.connect(), Terminal.from_stream()
    if ranks:
        workers = client.compare_ranks(runs[0], attempt=attempt)
        echo_json(workers) if as_json else echo_lines(render_ranks(workers, terminal))
        return
    found = client.compare(runs, code=code)
    if as_json:
        echo_json(found)
    elif code:
        echo_lines(render_code_diff(found))
    else:
        echo_lines(render_comparison(found, terminal))


def _check(runs: tuple[str, ...], *, code: bool, ranks: bool, attempt: int | None) -> None:
    """Refuse what cannot be meant.

    Raises:
        InvalidRequest
    """
    if ranks and code:
        raise InvalidRequest("--ranks contradicts --code", why="The ranks of a run have the same code.")
    if ranks and len(runs) != 1:
        raise InvalidRequest(f"--ranks takes one run, and {len(runs)} are named", fix="gangline compare RUN --ranks")
    if attempt is not None and not ranks:
        raise InvalidRequest("--attempt goes with --ranks", fix="gangline compare RUN --ranks --attempt N")
    if not ranks and len(runs) == 1:
        raise InvalidRequest(
            f"`{runs[0]}` is compared with nothing",
            fix=f"Name another run, or compare its workers: gangline compare {runs[0]} --ranks",
        )
