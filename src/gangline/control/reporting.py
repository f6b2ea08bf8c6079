"""A run to hand to a colleague: gathered from the store and the run directory, freed of secrets, then rendered."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from gangline.domain.errors import InvalidRequest, NotFound, nearest
from gangline.domain.redact import Redactor, looks_secret, secret_words
from gangline.ports import Clock
from gangline.report.charts import Chart, render_chart
from gangline.report.page import Excerpt, Page, render_page
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.home import Home
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.rundir.serving import read_token
from gangline.rundir.tail import read_kept
from gangline.wire.views import MetricView, RunDetail

__all__ = ["FORMATS", "ReportFile", "Reporter"]

FORMATS = ("html", "zip")
_HEAD_BYTES, _TAIL_BYTES = 8 << 10, 48 << 10
_STACKS_BYTES = 64 << 10
_ARCHIVED_LOG_BYTES = 4 << 20
_ARCHIVE_BYTES = 128 << 20
_SLACK_BYTES = 8 << 10
"""Read beyond a cut, so that a secret which the cut would halve is seen whole and removed first."""
_MOST_RANKS = 64
_MOST_CHARTS = 24
_BUCKETS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A finished report, in a file without a name that is gone when it is closed."""

    file: BinaryIO
    """At its beginning."""
    size_bytes: int
    removed: int
    """Places from which a secret was removed."""


class Reporter:
    """Makes reports. Safe for threads.

    Args:
        detail: all that is known of a run.
        metric: one metric of rank 0, by run and name.
    """

    def __init__(
        self,
        *,
        home: Home,
        clock: Clock,
        detail: Callable[[str], RunDetail],
        metric: Callable[[str, str, int], MetricView],
    ) -> None:
        self._home = home
        self._clock = clock
        self._detail = detail
        self._metric = metric

    def report(self, run_id: str, form: str) -> ReportFile:
        """The report of a run.

        Args:
            form: `html`: one page; `zip`: the page, with the logs, the journals and the spec as files.
        Raises:
            InvalidRequest: there is no such form.
        """
        if form not in FORMATS:
            raise InvalidRequest(f"There is no form `{form}` of a report", fix=nearest(form, FORMATS))
        detail, run_dir = self._detail(run_id), self._home.run(run_id)
        redactor = Redactor(_known_secrets(detail, run_dir, self._home))
        clean: RunDetail = redactor.value(detail)
        newest = run_dir.attempt(detail["attempts"][-1]["number"]) if detail["attempts"] else None
        ranks = _ranks_to_show(detail)
        logs = [] if newest is None else [_excerpt(newest, rank, redactor) for rank in ranks]
        stacks = [] if newest is None else list(_stacks(newest, ranks, redactor))
        charts = self._charts(detail, redactor)
        environments = {
            f"attempt {attempt['number']}, node {node['node']} ({node['host']})": node["environment"] or {}
            for attempt in clean["attempts"][-1:]
            for node in attempt["nodes"]
        }
        page = Page(
            run=clean,
            charts=charts,
            logs=[one for one in logs if one.text],
            stacks=stacks,
            environments=environments,
            removed=redactor.removed,
            created=self._clock.now(),
        )
        if form == "html":
            return _finish(io.BytesIO(render_page(page).encode("utf-8", "replace")), redactor)
        file = TemporaryFile()  # noqa: SIM115 - whoever gets it closes it
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in _archived(run_dir, clean, redactor):
                    archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
                page = replace(page, removed=redactor.removed)
                archive.writestr(
                    zipfile.ZipInfo(f"gangline-report-{run_id}/report.html"), render_page(page), zipfile.ZIP_DEFLATED
                )
        except BaseException:
            file.close()
            raise
        return _finish(file, redactor)

    def _charts(self, detail: RunDetail, redactor: Redactor) -> list[Chart]:
        found: list[Chart] = []
        for name in sorted(detail["metrics"])[:_MOST_CHARTS]:
            try:
                metric = self._metric(detail["id"], name, _BUCKETS)
            except NotFound:
                continue
            found.append(render_chart({**metric, "name": redactor.text(name)}))
        return found


def _known_secrets(detail: RunDetail, run_dir: RunDir, home: Home) -> set[str]:
    """Values that must not be seen: of variables with telling names, the gang's tokens, the server's own."""
    found = {value for name, value in _variables(detail["spec"]) if looks_secret(name)}
    found.update(secret_words([str(word) for word in detail["spec"].get("args") or ()]))
    for launch in run_dir.launches():
        try:
            told = read_json(launch.spec) or {}
        except (Unreadable, OSError):
            continue
        found.add(str(told.get("token") or ""))
        found.update(value for name, value in (told.get("env") or {}).items() if looks_secret(name))
    found.add(read_token(home) or "")
    return found - {""}


def _variables(spec: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    yield from (spec.get("inherited_env") or {}).items()
    yield from ((spec.get("environment") or {}).get("env") or {}).items()


def _ranks_to_show(detail: RunDetail) -> list[int]:
    """The one that failed first, then the others in order."""
    if not detail["attempts"]:
        return []
    newest = detail["attempts"][-1]
    failed = [newest["first_failure"]["rank"]] if newest["first_failure"] else []
    return list(dict.fromkeys([*failed, *(rank["rank"] for rank in newest["ranks"])]))[:_MOST_RANKS]


def _excerpt(attempt: AttemptDir, rank: int, redactor: Redactor) -> Excerpt:
    """The beginning and the end of a log."""
    title = f"rank {rank}, attempt {attempt.number}"
    text, left_out = _shortened(attempt.log(rank), _HEAD_BYTES, _TAIL_BYTES, redactor.text)
    note = f"{left_out:,} bytes in the middle were left out" if left_out else ""
    return Excerpt(title=title, text=text, note=note)


def _stacks(attempt: AttemptDir, ranks: list[int], redactor: Redactor) -> Iterator[Excerpt]:
    for rank in ranks:
        text, _ = _shortened(attempt.stacks(rank), 0, _STACKS_BYTES, redactor.text)
        if text.strip():
            yield Excerpt(title=f"rank {rank}, attempt {attempt.number}", text=text)


def _shortened(path: Path, head_bytes: int, tail_bytes: int, clean: Callable[[str], str]) -> tuple[str, int]:
    """The head and the tail of a file without secrets, cut at lines; and how many bytes lie between them."""
    try:
        size = path.stat().st_size
    except OSError:
        return "", 0
    if size <= head_bytes + tail_bytes + 2 * _SLACK_BYTES:
        return clean(_read(path, 0, size)), 0
    head = clean(_read(path, 0, head_bytes + _SLACK_BYTES))
    tail = clean(_read(path, size - tail_bytes - _SLACK_BYTES, size))
    head = head[:head_bytes].rpartition("\n")[0]
    tail = tail[-tail_bytes:].partition("\n")[2]
    return f"{head}\n…\n{tail}" if head else tail, size - len(head.encode()) - len(tail.encode())


def _read(path: Path, start: int, end: int) -> str:
    try:
        return b"".join(read_kept(path, start, end)).decode("utf-8", "replace")
    except OSError as error:
        return f"({path.name} cannot be read: {error.strerror or error})"


def _archived(run_dir: RunDir, clean: RunDetail, redactor: Redactor) -> Iterator[tuple[str, bytes]]:
    """The files beside the page; full logs up to a bound for each, and one for all."""
    root = f"gangline-report-{clean['id']}"
    yield f"{root}/run.json", _json(clean)
    yield f"{root}/spec.json", _json(clean["spec"])
    yield f"{root}/events.jsonl", "".join(json.dumps(event) + "\n" for event in clean["events"]).encode()
    if clean["code"] is not None and clean["code"]["diff"]:
        yield f"{root}/code.diff", clean["code"]["diff"].encode("utf-8", "replace")
    room = _ARCHIVE_BYTES
    for attempt in reversed(run_dir.attempts()):
        for path in sorted(attempt.path.rglob("*")):
            if path.suffix not in {".log", ".stacks", ".jsonl", ".json"} or not path.is_file() or room <= 0:
                continue
            half = _ARCHIVED_LOG_BYTES // 2
            clean_text = redactor.json if path.suffix in {".jsonl", ".json"} else redactor.text
            text, left_out = _shortened(path, half, half, clean_text)
            note = f"({left_out:,} bytes in the middle were left out)\n" if left_out else ""
            content = (note + text).encode("utf-8", "replace")
            room -= len(content)
            yield f"{root}/attempts/{attempt.number}/{path.relative_to(attempt.path)}", content


def _json(value: Any) -> bytes:  # noqa: ANN401 - JSON
    return json.dumps(value, indent=1).encode()


def _finish(file: BinaryIO, redactor: Redactor) -> ReportFile:
    size_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    return ReportFile(file=file, size_bytes=size_bytes, removed=redactor.removed)
