from __future__ import annotations

import asyncio
import json
import threading

import pytest

from gangline.agent.loglimit import LogLimit
from gangline.rundir.layout import RunDir
from gangline.rundir.logindex import IndexWriter
from gangline.server.follow import RunFollower, follow_lines
from gangline.server.logs import GangLogFollower, parse_offsets
from gangline.server.parts import Stopping
from gangline.server.ranklogs import Begin, RankLogs, find_end, read_piece
from gangline.testing.commands import FakeCommands, make_event, make_summary

V1 = "/api/v1"


def write(run_dir: RunDir, attempt: int, rank: int, data: bytes) -> None:
    path = run_dir.attempt(attempt).log(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir(tmp_path / "run")


# pieces


def test_a_log_is_read_in_pieces_that_meet(api):
    api.commands.runs["a"] = make_summary(id="a")
    text = "zeile ü €\n" * 500
    api.write_log("a", 1, text.encode())
    offset, found = 0, ""
    while True:
        chunk = api.client.log_chunk("a", 1, offset=offset, limit_bytes=17)
        assert chunk["offset"] == offset
        found += chunk["text"]
        offset = chunk["next_offset"]
        if offset == chunk["size"]:
            break
    assert found == text
    assert chunk["complete"] is False


def test_a_piece_is_complete_once_the_run_is_over(api):
    api.commands.runs["a"] = make_summary(id="a", phase="failed")
    api.write_log("a", 0, b"broken \xe2\x82")
    chunk = api.client.log_chunk("a", 0)
    assert (chunk["text"], chunk["next_offset"], chunk["complete"]) == ("broken �", 9, True)


def test_a_result_or_a_later_attempt_completes_an_attempt(api):
    api.commands.runs["a"] = make_summary(id="a")
    api.write_log("a", 0, b"zero\n", attempt=0)
    assert api.client.log_chunk("a", 0, attempt=0)["complete"] is False
    api.home.run("a").attempt(0).result.write_text("{}")
    assert api.client.log_chunk("a", 0, attempt=0)["complete"] is True
    api.home.run("a").attempt(0).result.unlink()
    api.write_log("a", 0, b"one\n", attempt=1)
    assert api.client.log_chunk("a", 0, attempt=0)["complete"] is True
    assert api.client.log_chunk("a", 0)["text"] == "one\n"


def test_the_last_lines(api):
    api.commands.runs["a"] = make_summary(id="a")
    api.write_log("a", 0, b"".join(b"line %d\n" % number for number in range(10_000)) + b"open")
    assert api.client.log_chunk("a", 0, tail=3)["text"] == "line 9998\nline 9999\nopen"
    assert api.client.log_chunk("a", 0, tail=0)["text"] == ""


def test_before_the_start_a_log_is_empty(api):
    api.commands.runs["a"] = make_summary(id="a", phase="queued")
    chunk = api.client.log_chunk("a", 1)
    assert (chunk["text"], chunk["size"], chunk["complete"], chunk["attempt"]) == ("", 0, False, 0)
    assert b"".join(api.client.raw_log("a", 1)) == b""


def test_raw_is_byte_for_byte(api):
    api.commands.runs["a"] = make_summary(id="a")
    data = bytes(range(256)) * 5000
    api.write_log("a", 0, data)
    assert b"".join(api.client.raw_log("a", 0)) == data


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a/logs/2", "Ranks: 0 to 1"),
        ("a/logs/-1", "Ranks: 0 to 1"),
        ("a/logs/0?attempt=3", "Attempts: 0 to 0"),
        ("b/logs/0", "gangline ps"),
        ("a/follow?ranks=0,9", "Ranks: 0 to 1"),
        ("a/follow?ranks=zero", "0,3"),
        ("a/follow?offsets=zero", "0:17"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(api, path, says):
    api.commands.runs["a"] = make_summary(id="a")
    answer = api.http.get(f"{V1}/runs/{path}")
    assert answer.status_code in {404, 422}
    assert says in answer.json()["error"]["fix"]


def test_a_piece_never_ends_inside_a_character(run_dir):
    write(run_dir, 0, 0, "a€".encode()[:-1])
    assert read_piece(run_dir.attempt(0), 0, offset=0, limit_bytes=100, over=False)["text"] == "a"
    write(run_dir, 0, 0, "€".encode()[-1:])
    assert read_piece(run_dir.attempt(0), 0, offset=1, limit_bytes=100, over=False)["text"] == "€"


def test_offsets_are_parsed():
    assert parse_offsets("0:17,3:0,") == {0: 17, 3: 0}
    assert parse_offsets("") == {}


# several ranks


def texts(pieces) -> dict[int, str]:
    found: dict[int, str] = {}
    for piece in pieces:
        found[piece["rank"]] = found.get(piece["rank"], "") + piece["text"]
    return found


def test_ranks_are_merged_and_read_once(run_dir):
    follower = GangLogFollower(run_dir=run_dir, ranks=[0, 1], attempt=None)
    assert follower.poll(run_over=False) == ([], True)
    write(run_dir, 0, 0, b"a")
    write(run_dir, 0, 1, b"b")
    assert texts(follower.poll(run_over=False)[0]) == {0: "a", 1: "b"}
    assert follower.poll(run_over=False) == ([], True)
    write(run_dir, 0, 1, b"c")
    assert texts(follower.poll(run_over=False)[0]) == {1: "c"}


def test_a_follow_goes_on_into_the_next_attempt_after_the_end_of_the_last(run_dir):
    follower = GangLogFollower(run_dir=run_dir, ranks=[0], attempt=0)
    write(run_dir, 0, 0, b"zero")
    write(run_dir, 1, 0, b"one")
    write(run_dir, 10, 0, b"ten")
    found, all_read = [], False
    while not all_read:
        pieces, all_read = follower.poll(run_over=False)
        found += [(piece["attempt"], piece["text"]) for piece in pieces]
    assert found == [(0, "zero"), (1, "one"), (10, "ten")]


def test_a_flood_of_one_rank_neither_fills_memory_nor_starves_the_others(run_dir):
    ranks = list(range(40))
    for rank in ranks:
        write(run_dir, 0, rank, b"x" * 200_000)
    follower = GangLogFollower(run_dir=run_dir, ranks=ranks, attempt=0)
    pieces, _ = follower.poll(run_over=False)
    assert sum(len(piece["text"]) for piece in pieces) <= 1_200_000
    seen = {piece["rank"] for piece in pieces}
    for _ in range(2):
        seen |= {piece["rank"] for piece in follower.poll(run_over=False)[0]}
    assert seen == set(ranks)


def test_given_offsets_and_tail_count_for_the_first_attempt_alone(run_dir):
    write(run_dir, 0, 0, b"old\nnew\n")
    write(run_dir, 0, 1, b"one\ntwo\n")
    write(run_dir, 1, 0, b"whole\nlog\n")
    follower = GangLogFollower(run_dir=run_dir, ranks=[0, 1], attempt=0, offsets={0: 4}, begin=Begin(tail=1))
    assert texts(follower.poll(run_over=False)[0]) == {0: "new\n", 1: "two\n"}
    assert texts(follower.poll(run_over=False)[0]) == {0: "whole\nlog\n"}


def test_a_cut_character_at_the_end_of_an_attempt_is_not_lost(run_dir):
    write(run_dir, 0, 0, b"end \xe2\x82")
    follower = GangLogFollower(run_dir=run_dir, ranks=[0], attempt=0)
    found = ""
    for _ in range(4):
        found += "".join(piece["text"] for piece in follower.poll(run_over=True)[0])
    assert found == "end �"


def write_index(run_dir: RunDir, rank: int, *records: tuple[float, int]) -> None:
    index = IndexWriter(run_dir.attempt(0).index(rank), interval_s=0.0)
    for moment, size in records:
        index.note(size, moment)


def test_ranks_are_read_in_order_of_time(run_dir):
    for rank in (0, 1):
        write(run_dir, 0, rank, b"".join(b"%d%d\n" % (rank, number) for number in range(5)))
    write_index(run_dir, 0, (10.0, 3), (12.0, 9))
    write_index(run_dir, 1, (9.0, 3), (11.0, 6), (13.0, 12))
    logs = RankLogs(attempt=run_dir.attempt(0), ranks=[0, 1])
    text = "".join(piece["text"] for piece in logs.read(over=True))
    assert text.split() == ["10", "00", "11", "01", "02", "12", "13", "03", "04", "14"]
    assert logs.read(over=True) == []


def test_what_comes_after_a_time_and_up_to_one(run_dir):
    write(run_dir, 0, 0, b"a\nb\nc\nd\n")
    write_index(run_dir, 0, (10.0, 2), (11.0, 3), (12.0, 6), (13.0, 8))
    attempt = run_dir.attempt(0)
    read = lambda begin, until: texts(  # noqa: E731
        RankLogs(attempt=attempt, ranks=[0], begin=begin, ends={0: find_end(attempt, 0, until)}).read(over=True)
    ).get(0, "")
    assert read(Begin(since=10.5), None) == "b\nc\nd\n"
    assert read(Begin(since=11.5), None) == "b\nc\nd\n", "the line that had only begun is whole"
    assert read(Begin(since=12.5), None) == "d\n"
    assert read(Begin(), 11.5) == "a\nb\nc\n"
    assert read(Begin(since=0.0, tail=1), 99.0) == "d\n"
    assert read(Begin(since=99.0), None) == ""


def test_a_log_that_was_cut_says_so_wherever_it_is_read(api):
    api.commands.runs["a"] = make_summary(id="a")
    lines = b"".join(b"line %05d\n" % number for number in range(3000))
    api.write_log("a", 0, lines)
    log = api.home.run("a").attempt(0).log(0)
    assert LogLimit(log, 8000).apply(len(lines))
    note = "… 26.0 KB of output were dropped here (limit 8.0 KB per rank: --log-limit) …\n"
    raw = b"".join(api.client.raw_log("a", 0)).decode()
    assert raw.count(note) == 1
    assert raw.startswith("line 00000\n")
    assert raw.endswith("line 02999\n")
    assert len(raw) < 8000 + 100
    assert "\0" not in raw
    assert "".join(piece["text"] for piece in api.client.log_chunks("a", ranks=[0])) == raw
    head = api.client.log_chunk("a", 0)
    gap = api.client.log_chunk("a", 0, offset=head["next_offset"])
    assert (gap["text"], gap["dropped_bytes"]) == (note, gap["next_offset"] - gap["offset"])
    rest = api.client.log_chunk("a", 0, offset=gap["next_offset"])
    assert head["text"] + gap["text"] + rest["text"] == raw
    assert api.client.log_chunk("a", 0, tail=2)["text"] == "line 02998\nline 02999\n"
    assert api.client.log_chunk("a", 0, tail=2000)["text"] == note


# the stream


def lines_of(data: bytes) -> list[dict]:
    return [json.loads(line) for line in data.splitlines() if line]


def make_follower(run_dir, commands, clock, after=-1):
    logs = GangLogFollower(run_dir=run_dir, ranks=[0, 1], attempt=None)
    return RunFollower(run_id="a", runs=commands, logs=logs, after=after, clock=clock)


def test_the_stream_ends_after_the_last_byte_and_the_last_event(run_dir):
    commands, now = FakeCommands(), iter(range(100))
    commands.runs["a"] = make_summary(id="a")
    follower = make_follower(run_dir, commands, lambda: float(next(now)))
    write(run_dir, 0, 0, b"first\n")
    commands.history["a"] = [make_event(0)]
    seen = lines_of(follower.poll()[0])
    assert [next(iter(line)) for line in seen] == ["event", "rank"]
    write(run_dir, 0, 1, b"last\n")
    commands.history["a"].append(make_event(1, "failed"))
    commands.runs["a"] = make_summary(id="a", phase="failed")
    rest: list[dict] = []
    while not follower.ended:
        rest += lines_of(follower.poll()[0])
    assert [line.get("text") or next(iter(line)) for line in rest] == ["event", "last\n", "end"]
    assert rest[-1]["end"]["phase"] == "failed"


def test_a_reader_is_told_once_why_the_server_cannot_go_on(run_dir):
    commands, now = FakeCommands(), iter(range(100))
    commands.runs["a"] = make_summary(id="a")
    follower = make_follower(run_dir, commands, lambda: float(next(now)))
    said = iter(["", "no room", "no room", "", "no room"])
    follower.trouble = lambda: next(said)
    told = [line["waits"] for _ in range(5) for line in lines_of(follower.poll()[0]) if "waits" in line]
    assert told == ["no room", "no room"]


@pytest.mark.parametrize("attempt", [None, 0])
def test_that_an_attempt_starts_is_told_before_what_its_ranks_write(run_dir, attempt):
    commands, now = FakeCommands(), iter(range(100))
    commands.runs["a"] = make_summary(id="a", attempt=None)
    follower = make_follower(run_dir, commands, lambda: float(next(now)))
    follower.logs.attempt = attempt
    write(run_dir, 0, 0, b"written before the store knew of the attempt\n")
    assert lines_of(follower.poll()[0]) == []
    commands.runs["a"], commands.history["a"] = make_summary(id="a", attempt=0), [make_event(0)]
    assert [next(iter(line)) for line in lines_of(follower.poll()[0])] == ["event", "rank"]
    write(run_dir, 1, 0, b"the next one\n")
    assert lines_of(follower.poll()[0]) == []
    commands.runs["a"] = make_summary(id="a", attempt=1)
    assert follower.poll() == (b"", True)
    assert [line["text"] for line in lines_of(follower.poll()[0])] == ["the next one\n"]


def test_why_a_queued_run_waits_is_told_when_it_changes_and_not_too_often(run_dir):
    commands, now, told = FakeCommands(), [0.0], []
    follower = make_follower(run_dir, commands, lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        commands.runs["a"] = make_summary(id="a", phase="queued", message=f"Priority, {max(second, 3)} s to go.")
        told += [(second, line["waits"]) for line in lines_of(follower.poll()[0])]
    assert [second for second, _ in told] == [1, 6, 16, 36]
    assert told[0][1] == "Priority, 3 s to go."
    commands.runs["a"] = make_summary(id="a", phase="starting", message="Agents are starting.")
    now[0] += 100
    assert lines_of(follower.poll()[0]) == []


def test_events_that_are_known_are_not_repeated(run_dir):
    commands = FakeCommands()
    commands.runs["a"] = make_summary(id="a", phase="stopped")
    commands.history["a"] = [make_event(number) for number in range(4)]
    follower = make_follower(run_dir, commands, lambda: 0.0, after=2)
    assert [line.get("event", {}).get("seq") for line in lines_of(follower.poll()[0])] == [3, None]


def test_the_store_is_asked_ten_times_a_second_at_most(run_dir):
    commands, looks, now = FakeCommands(), [], [0.0]
    commands.runs["a"] = make_summary(id="a")
    follower = make_follower(run_dir, commands, lambda: now[0])
    commands.summary = lambda run_id: looks.append(run_id) or commands.runs["a"]
    for _ in range(100):
        follower.poll()
        now[0] += 0.01
    assert len(looks) <= 11


def test_the_store_is_asked_no_more_while_nothing_changes(run_dir):
    commands, looks, now, version = FakeCommands(), [], [0.0], [1]
    commands.runs["a"] = make_summary(id="a")
    follower = make_follower(run_dir, commands, lambda: now[0])
    commands.version = lambda: version[0]
    commands.summary = lambda run_id: looks.append(run_id) or commands.runs["a"]
    for _ in range(20):
        follower.poll()
        now[0] += 0.2
    assert len(looks) == 1
    version[0], commands.history["a"] = 2, [make_event(0)]
    assert [line["event"]["seq"] for line in lines_of(follower.poll()[0])] == [0]


def test_a_pause_is_one_timer_and_ends_with_the_server():
    stopping, timers = Stopping(), []

    async def wait() -> list[bool]:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at
        loop.call_at = lambda *args, **keys: timers.append(args) or call_at(*args, **keys)
        first = await stopping.pause(0.2)
        ender = threading.Timer(0.0, stopping.begin)
        ender.start()
        return [first, await stopping.pause(600), await stopping.pause(600)]

    assert asyncio.run(wait()) == [True, False, False]
    assert len(timers) <= 2
    stopping.begin()


def test_the_stream_breaks_off_when_the_server_ends(run_dir):
    commands, stopping = FakeCommands(), Stopping()
    commands.runs["a"] = make_summary(id="a")
    write(run_dir, 0, 0, b"text")

    async def collect() -> list[bytes]:
        found = []
        async for lines in follow_lines(make_follower(run_dir, commands, lambda: 0.0), stopping):
            found.append(lines)
            stopping.begin()
        return found

    assert len(asyncio.run(collect())) == 1


def test_a_client_follows_to_the_end(api):
    api.commands.runs["a"] = make_summary(id="a", phase="succeeded")
    api.commands.history["a"] = [make_event(0), make_event(1)]
    api.write_log("a", 0, b"hello\n")
    items = list(api.client.follow("a", attempt=0))
    assert [item.get("text") or next(iter(item)) for item in items] == ["event", "event", "hello\n", "end"]
