"""Trouble with metadata or a datastore never decides how a gang's task ends (K4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from metaflow_extensions.gangline.plugins import trampoline
from metaflow_extensions.gangline.plugins.compat import log_store
from metaflow_extensions.gangline.plugins.task import GangTask

if TYPE_CHECKING:
    from collections.abc import Callable

TASK = GangTask(flow="F", run="1", step="train", task="2", retry=0)


def refuse(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError("the service is away")


def test_metadata_that_cannot_be_registered_is_only_said(capsys: pytest.CaptureFixture[str]) -> None:
    note: Callable[..., None] = trampoline._noting(SimpleNamespace(register_metadata=refuse), TASK)
    note(fields={"gangline-run-id": "r", "gangline-phase": "succeeded"})
    said = capsys.readouterr().err
    assert "could not be registered (the service is away): gangline-run-id, gangline-phase." in said


def test_a_store_that_is_away_is_first_asked_where_its_refusal_is_caught() -> None:
    save = log_store(SimpleNamespace(get_task_datastore=refuse), run="1", step="train", task="2", attempt=0)
    with pytest.raises(RuntimeError, match="away"):
        save(b"", b"")
