"""`gangline logs`: what the ranks wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import connection
from gangline.cli.describe import describe_phase, explain, is_over, num_ranks
from gangline.cli.follow import Following, follow_run, label_of, make_printer
from gangline.cli.logdownload import download_logs
from gangline.cli.logsearch import print_hits
from gangline.cli.moment import Moment
from gangline.cli.options import Ranks, Whole, json_option, run_argument
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import visible
from gangline.domain.errors import InvalidRequest, NotFound
from gangline.wire.views import LogChunk, LogHit, RunDetail, RunSummary

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What to print."""

    run: RunDetail
    ranks: Sequence[int]
    attempt: int | None
    tail: int | None
    since: float | None
    until: float | None
    raw: bool

    @property
    def span(self) -> dict[str, float | None]:
        return {"since": self.since, "until": self.until}


@click.command("logs")
@run_argument
@click.option(
    "-r", "--rank", "ranks", type=Ranks(), multiple=True, help="These ranks: 3, or 0,3-5.  [default: 0; all to search]"
)
@click.option("-A", "--all-ranks", is_flag=True, help="Every rank, in order of time; each line begins with its rank.")
@click.option("--attempt", type=Whole(), help="This attempt.  [default: the newest; all to search or download]")
@click.option("-f", "-F", "--follow", is_flag=True, help="Go on until the run is over; exit with the run's code.")
@click.option("-n", "--tail", type=Whole(), help="Only the last N lines of each rank.")
@click.option("--since", type=Moment(), help="Only what was written since: 10m (ago), 14:30, 2026-11-30 14:30.")
@click.option("--until", type=Moment(), help="Only what was written up to then.")
@click.option("-s", "--search", "pattern", metavar="REGEX", help="Lines that match, of all ranks and attempts.")
@click.option("-i", "--ignore-case", is_flag=True, help="Letters match whatever their case.")
@click.option("--fixed", is_flag=True, help="What is searched for is plain text.")
@click.option("-C", "--context", type=Whole(most=100), default=0, help="N lines around each line that matches.")
@click.option("--limit", type=Whole(1, 100_000), default=1000, help="At most so many matches.  [default: 1000]")
@click.option("--download", "folder", metavar="DIR", type=Path, help="Write all logs into a folder, a file each.")
@click.option("--raw", is_flag=True, help="Bytes as they were written, control codes and all.")
@json_option("Print pieces of the logs as JSON, one object a line.")
def command(run: str, ranks: Sequence[tuple[int, ...]], attempt: int | None, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Print what the ranks wrote.

    Colours and control codes are taken out, and of a progress bar only its last state is printed; `--raw` leaves
    everything as it was written. Ctrl-C ends only the following, never the run. A search says by its exit code whether
    it found anything: 0, or 1.
    """
    _check_options(options)
    client = connection.connect()
    summary = client.run(run)
    named = [rank for part in ranks for rank in part]
    wide = options["pattern"] is not None or options["folder"] is not None
    everything = options["all_ranks"] or (wide and not named)
    wanted = _Wanted(
        run=summary,
        ranks=_choose_ranks(summary, named, all_ranks=everything),
        attempt=attempt,
        tail=options["tail"],
        since=options["since"],
        until=options["until"],
        raw=options["raw"],
    )
    if not (named or everything or options["follow"]):
        _tell_who_failed(wanted)
    if not (wide or options["follow"] or options["as_json"] or options["raw"]):
        _tell_earlier_attempts(wanted)
    if options["pattern"] is not None:
        return _search(client, wanted, options)
    if options["folder"] is not None:
        attempts = range((summary["attempt"] or 0) + 1) if attempt is None else [attempt]
        return download_logs(client, summary["id"], options["folder"], wanted.ranks, attempts, **wanted.span)
    return _print(client, wanted, options)


def _tell_who_failed(wanted: _Wanted) -> None:
    """The rank that is shown unless another is named may not be the one to look at."""
    attempts = wanted.run["attempts"]
    shown = next((one for one in reversed(attempts) if wanted.attempt in {None, one["number"]}), None)
    failure = None if shown is None else shown["first_failure"]
    if failure is not None and failure["rank"] not in wanted.ranks:
        rank = failure["rank"]
        say(f"this is rank 0; rank {rank} failed first: gangline logs {wanted.run['id']} --rank {rank}", err=True)


def _tell_earlier_attempts(wanted: _Wanted) -> None:
    """What a rank wrote before a restart is in another file, which is easily forgotten."""
    newest = wanted.run["attempt"]
    if wanted.attempt is None and newest:
        earlier = "0" if newest == 1 else f"0 to {newest - 1}"
        say(f"this is attempt {newest}; --attempt N shows an earlier one: {earlier}", err=True)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse what does not go together."""
    asked = {"--search": options["pattern"], "--download": options["folder"], "--follow": options["follow"] or None}
    doing = [name for name, value in asked.items() if value is not None]
    if len(doing) > 1:
        raise InvalidRequest(f"{doing[0]} and {doing[1]} do not go together", fix="Ask for one, then for the other.")
    if options["follow"] and options["until"] is not None:
        raise InvalidRequest("--until and --follow do not go together", fix="Leave one of them out.")
    if options["tail"] is not None and doing and doing != ["--follow"]:
        raise InvalidRequest(f"--tail and {doing[0]} do not go together", fix="Narrow it by --since instead.")
    if options["pattern"] is None and (options["ignore_case"] or options["fixed"] or options["context"]):
        raise InvalidRequest("--ignore-case, --fixed and --context are for a search", fix="Add --search REGEX.")


def _search(client: Client, wanted: _Wanted, options: Mapping[str, Any]) -> int:
    run = wanted.run
    keys = ("ignore_case", "fixed", "context", "limit")
    every = len(wanted.ranks) == num_ranks(run)
    hits = client.search(
        run["id"],
        options["pattern"],
        ranks=None if every else wanted.ranks,
        attempt=wanted.attempt,
        **{key: options[key] for key in keys},
        **wanted.span,
    )
    terminal = Terminal.from_stream()
    several = wanted.attempt is None and bool(run["attempt"])

    def label(hit: LogHit) -> str:
        attempt = f"attempt {hit['attempt']} " if several else ""
        return label_of(terminal, hit["rank"], attempt) if several or len(wanted.ranks) > 1 else ""

    return print_hits(hits, terminal, label, context=options["context"], as_json=options["as_json"])


def _print(client: Client, wanted: _Wanted, options: Mapping[str, Any]) -> int:
    run_id = wanted.run["id"]
    if options["follow"]:
        after = max((event["seq"] for event in wanted.run["events"]), default=-1)
        following = Following(
            ranks=wanted.ranks,
            attempt=wanted.attempt,
            tail=wanted.tail,
            since=wanted.since,
            after=after,
            raw=wanted.raw,
            as_json=options["as_json"],
        )
        return follow_run(client, run_id, following)
    if options["as_json"]:
        return _print_json(client, wanted)
    if wanted.raw and wanted.tail is None and len(wanted.ranks) == 1:
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
    printer = make_printer(Terminal.from_stream(), labelled=len(wanted.ranks) > 1, raw=wanted.raw, live=False)
    anything = False
    for chunk in _read(client, wanted):
        anything = True
        printer.feed(chunk)
    printer.finish()
    if not anything:
        who = f"rank {wanted.ranks[0]} has" if len(wanted.ranks) == 1 else "the ranks have"
        run = wanted.run
        when = " in that time" if wanted.since is not None or wanted.until is not None else ""
        stands = "is over" if is_over(run) else f"is {describe_phase(run)}"
        state = f"{run['id']} {stands}: {explain(run, Terminal().now)}"
        say(f"{who} written nothing{when}; {state}", err=True)
        _print_launch(client, run)
    return 0


def _print_launch(client: Client, run: RunSummary) -> None:
    """What was written before there was any rank: by set-up lines, by the scheduler, by agents."""
    if not is_over(run):
        return
    told = client.run(run["id"])["job_log"]
    if told:
        say("Before there was any rank, its job and its agents wrote:", err=True)
        say(visible(told.rstrip("\n"), multiline=True))


def _print_json(client: Client, wanted: _Wanted) -> int:
    import json  # noqa: PLC0415 - only here

    for chunk in _read(client, wanted):
        say(json.dumps(chunk))
    return 0


def _print_raw(client: Client, wanted: _Wanted) -> int:
    sys.stdout.flush()
    for block in client.raw_log(wanted.run["id"], wanted.ranks[0], attempt=wanted.attempt, **wanted.span):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    return 0


def _read(client: Client, wanted: _Wanted) -> Iterator[LogChunk]:
    """The logs as they are now, in order of time."""
    ranks = None if len(wanted.ranks) == num_ranks(wanted.run) else wanted.ranks
    return client.log_chunks(wanted.run["id"], ranks=ranks, attempt=wanted.attempt, tail=wanted.tail, **wanted.span)
