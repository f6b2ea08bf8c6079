"""Jobs of `squeue --json` and `sacct --json`, 21.08 to 25.x. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gangline.backends.slurm.records import OOM_SIGNAL, JobRecord, parse_status, said
from gangline.backends.slurm.states import parse_state
from gangline.domain.errors import Transient

__all__ = ["Unreadable", "parse_json_jobs"]


class Unreadable(Transient):
    """The command has answered, but in a form that is not known."""


_JSON_NAMES: Mapping[str, Sequence[str]] = {
    "reason": ("state_reason", "state.reason"),
    "comment": ("comment.job", "comment"),
    "submitted": ("submit_time", "time.submission"),
    "start": ("start_time", "time.start"),
    "end": ("end_time", "time.end"),
    "num_nodes": ("node_count", "allocation_nodes"),
}


def parse_json_jobs(text: str) -> list[JobRecord]:
    """Jobs of `squeue --json` or `sacct --json`, 21.08 to 25.x; what sites print before and behind it is left out.

    Raises:
        Transient: it is cut off.
        Unreadable: it is no list of jobs.
    """
    try:
        raw, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except ValueError as error:
        raise Transient("The answer in JSON is cut off", why=str(error)) from error
    jobs = raw.get("jobs") if isinstance(raw, dict) else None
    if not isinstance(jobs, list):
        raise Unreadable("The answer in JSON holds no jobs")
    return [_parse_json(job) for job in jobs if isinstance(job, dict) and job.get("job_id")]


def _parse_json(raw: Mapping[str, Any]) -> JobRecord:
    told = _plain(_first(raw, ("job_state", "state.current")))
    state = parse_state(told if isinstance(told, (str, list)) else "")
    exit_code, signal = _json_exit(raw.get("exit_code"))
    _, derived = _json_exit(raw.get("derived_exit_code"))
    requeues = raw.get("requeue")
    by = raw.get("kill_request_user")
    return JobRecord(
        job=str(_plain(raw["job_id"])),
        state=state,
        reason=said(str(_first(raw, _JSON_NAMES["reason"]) or "")),
        name=_text(raw.get("name")),
        comment=_text(_first(raw, _JSON_NAMES["comment"])),
        restarts=_int(raw.get("restart_cnt")),
        requeues=requeues if isinstance(requeues, bool) else None,
        exit_code=exit_code,
        signal=signal,
        out_of_memory=OOM_SIGNAL in {signal, derived},
        submitted=_json_time(_first(raw, _JSON_NAMES["submitted"])),
        start=_json_time(_first(raw, _JSON_NAMES["start"])),
        end=_json_time(_first(raw, _JSON_NAMES["end"])),
        num_nodes=_int(_first(raw, _JSON_NAMES["num_nodes"])),
        nodes=said(str(raw.get("nodes") or "")),
        by=state.by or (by if isinstance(by, str) and state.meaning.cancelled else ""),
    )


def _first(raw: Mapping[str, Any], paths: Sequence[str]) -> object:
    """The value at the first of these paths that leads anywhere."""
    for path in paths:
        value: Any = raw
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and not (isinstance(value, dict) and "set" not in value):
            return value
    return None


def _plain(value: object) -> object:
    """A number as it is, or as {"set": true, "infinite": false, "number": 5}; not set is None."""
    if isinstance(value, dict) and "number" in value:
        return value["number"] if value.get("set", True) and not value.get("infinite") else None
    return value


def _int(value: object) -> int | None:
    plain = _plain(value)
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else None


def _json_time(value: object) -> float | None:
    """0 is how Slurm says: not yet."""
    return float(_int(value) or 0) or None


def _json_exit(value: object) -> tuple[int | None, int | None]:
    """A wait status (squeue of 22.05), or {"return_code", "signal": {"id" or "signal_id"}}."""
    plain = _plain(value)
    if isinstance(plain, int):
        return parse_status(plain)
    if not isinstance(plain, dict):
        return None, None
    signal = plain.get("signal")
    number = _int(_first(signal, ("id", "signal_id"))) if isinstance(signal, dict) else None
    code = _int(plain.get("return_code"))
    return (code if code is not None else 0 if number else None), number or 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
