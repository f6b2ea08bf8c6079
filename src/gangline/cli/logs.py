"""`gangline logs`: what the ranks wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gangline.cli import connection
from gangline.cli.describe import describe_phase, explain, num_ranks
from gangline.cli.follow import Following, follow_run, make_printer
from gangline.cli.options import Whole, json_option, run_argument
from gangline.cli.terminal import Terminal, say
from gangline.domain.errors import NotFound
from gangline.wire.views import LogChunk, RunSummary

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["command"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What to print."""

    run: RunSummary
    ranks: Sequence[int]
    attempt: int | None
    tail: int | None
    raw: bool


@click.command("logs")
@run_argument
@click.option("-r", "--rank", "ranks", type=Whole(), multiple=True, help="This rank; may be repeated.  [default: 0]")
@click.option("-A", "--all-ranks", is_flag=True, help="Every rank; each line begins with its rank.")
@click.option("--attempt", type=Whole(), help="This attempt.  [default: the newest]")
@click.option("-f", "-F", "--follow", is_flag=True, help="Go on until the run is over; exit with the run's code.")
@click.option("-n", "--tail", type=Whole(), help="Only the last N lines of each rank.")
@click.option("--raw", is_flag=True, help="Bytes as they were written, control codes and all.")
@json_option("Print pieces of the logs as JSON, one object a line.")
def command(
    *,
    run: str,
    ranks: Sequence[int],
    all_ranks: bool,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    raw: bool,
    as_json: bool,
) -> int:
    """Print what the ranks wrote.

    Colours and control codes are taken out, and of a progress bar only its last state is printed; `--raw` leaves
    everything as it was written. Ctrl-C ends only the following, never the run.
    """
    client = connection.connect()
    summary = client.run(run)
    chosen = _choose_ranks(summary, ranks, all_ranks=all_ranks)
    wanted = _Wanted(run=summary, ranks=chosen, attempt=attempt, tail=tail, raw=raw)
    if follow:
        after = max((event["seq"] for event in summary["events"]), default=-1)
        following = Following(ranks=chosen, attempt=attempt, tail=tail, after=after, raw=raw, as_json=as_json)
        return follow_run(client, summary["id"], following)
    if as_json:
        return _print_json(client, wanted)
    if raw and tail is None:
        return _print_raw(client, wanted)
    return _print_plain(client, wanted)


def _choose_ranks(run: RunSummary, ranks: Sequence[int], *, all_ranks: bool) -> list[int]:
    count = num_ranks(run)
    if all_ranks:
        return list(range(count))
    for rank in ranks:
        if rank >= count:
            raise NotFound(
                f"Run `{run['id']}` has no rank {rank}", why=f"It has {count}.", fix=f"Valid: 0 to {count - 1}."
            )
    return list(dict.fromkeys(ranks)) or [0]


def _print_plain(client: Client, wanted: _Wanted) -> int:
    printer = make_printer(Terminal.from_stream(), labelled=len(wanted.ranks) > 1, raw=wanted.raw)
    size_bytes = 0
    for rank in wanted.ranks:
        for chunk in _read(client, wanted, rank):
            size_bytes += chunk["size"]
            printer.feed(chunk)
        printer.finish()
    if not size_bytes:
        who = f"rank {wanted.ranks[0]} has" if len(wanted.ranks) == 1 else "the ranks have"
        run = wanted.run
        say(f"{who} written nothing; {run['id']} is {describe_phase(run)}: {explain(run, Terminal().now)}", err=True)
    return 0


def _print_json(client: Client, wanted: _Wanted) -> int:
    import json  # noqa: PLC0415 - only here

    for rank in wanted.ranks:
        for chunk in _read(client, wanted, rank):
            say(json.dumps(chunk))
    return 0


def _print_raw(client: Client, wanted: _Wanted) -> int:
    sys.stdout.flush()
    for rank in wanted.ranks:
        for block in client.raw_log(wanted.run["id"], rank, attempt=wanted.attempt):
            sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    return 0


def _read(client: Client, wanted: _Wanted, rank: int) -> Iterator[LogChunk]:
    """The log of one rank as it is now, in pieces."""
    run_id, attempt = wanted.run["id"], wanted.attempt
    chunk = client.log_chunk(run_id, rank, attempt=attempt, tail=wanted.tail, limit_bytes=_CHUNK_BYTES)
    end = chunk["size"]
    yield chunk
    while chunk["offset"] < chunk["next_offset"] < end:
        offset = chunk["next_offset"]
        chunk = client.log_chunk(run_id, rank, attempt=chunk["attempt"], offset=offset, limit_bytes=_CHUNK_BYTES)
        yield chunk
