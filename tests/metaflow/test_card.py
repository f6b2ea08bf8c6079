"""The card `gangline.run`, of real runs, as it lies in the datastore."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
EVIL = "<img src=x onerror=alert(1)>"


def card_of(flows: Flows) -> str:
    """The newest card of the one step; "" while there is none."""
    found = sorted(flows.folder.rglob("gangline.run-*.html"), key=lambda path: path.stat().st_mtime)
    return found[-1].read_text() if found else ""


def shown(html: str) -> Any:
    """The components that a card shows."""
    found = re.search(r'__MF_DATA__\["[^"]+"\] = "([^"]+)"', html)
    return json.loads(base64.b64decode(found[1])) if found else {}


def of_type(parts: Any, kind: str) -> list[Any]:
    """All components of a type, however deep."""
    if isinstance(parts, list):
        return [one for part in parts for one in of_type(part, kind)]
    if not isinstance(parts, dict):
        return []
    return ([parts] if parts.get("type") == kind else []) + [
        one for part in parts.values() for one in of_type(part, kind)
    ]


def test_a_card_is_drawn_while_the_gang_runs_and_when_it_is_over(flows: Flows) -> None:
    process = flows.start("carded", "run")
    early = flows.until(lambda: shown(card_of(flows)) if "node 1 CPU" in str(shown(card_of(flows))) else None, process)
    (run,) = flows.runs()
    assert run["phase"] == "running"
    assert ["phase", "running"] in of_type(early, "table")[0]["data"]
    (flows.folder / "fail-0").touch()
    (flows.folder / "go-on").touch()
    assert process.wait(90) == 0, process.output.read_text()  # type: ignore[attr-defined]
    late = shown(card_of(flows))
    facts = dict(of_type(late, "table")[0]["data"])
    assert facts.items() >= {"run": run["id"], "phase": "succeeded", "restarts": "1", "step": "20 of 20"}.items()
    titles = [one["spec"]["title"] for one in of_type(late, "vegaChart")]
    assert titles[:2] == ["loss", "tokens_per_s"]
    assert len(of_type(late, "vegaChart")[0]["spec"]["data"]["values"]) == 20
    nodes = next(one["data"] for one in of_type(late, "table") if "CPU" in one["columns"])
    assert [row[0] for row in nodes] == ["0", "1"]
    attempts = next(one["data"] for one in of_type(late, "table") if "ended as" in one["columns"])
    assert [row[3] for row in attempts] == ["failed", "succeeded"]
    assert "rank 1 on node 1" in attempts[0][5]
    assert f"ValueError: {EVIL} in attempt 0" in attempts[0][5]
    assert f"gangline logs {run['id']} --all-ranks" in str(of_type(late, "table")[-1])


def test_nothing_of_a_run_is_markup_in_its_card(flows: Flows) -> None:  # X2
    (flows.folder / "go-on").touch()
    code, output = flows.run("carded", "run")
    assert code == 0, output
    html = card_of(flows)
    assert EVIL not in html
    assert "<script>alert(2)" not in html
    parts = shown(html)
    assert EVIL in of_type(parts, "log")[0]["data"]  # there, and as text
    assert EVIL in [one["spec"]["title"] for one in of_type(parts, "vegaChart")]
    assert not of_type(parts, "markdown")  # Metaflow renders the HTML in it
    assert not of_type(parts, "html")


def test_a_gang_that_failed_has_a_card_that_says_why(flows: Flows) -> None:
    for name in ("go-on", "fail-0", "fail-1"):
        (flows.folder / name).touch()
    code, output = flows.run("carded", "run")
    assert code == 1, output
    parts = shown(card_of(flows))
    facts = dict(of_type(parts, "table")[0]["data"])
    assert facts["phase"] == "failed (user_error)"
    assert "rank 1" in [one["title"] for one in of_type(parts, "section")]
    assert f"ValueError: {EVIL} in attempt 1" in of_type(parts, "log")[0]["data"]


def test_a_card_that_cannot_be_drawn_fails_nothing(flows: Flows) -> None:
    (flows.folder / "go-on").touch()
    (flows.project / ".metaflow").mkdir()
    (flows.project / ".metaflow/mf.cards").write_text("no folder")
    code, output = flows.run("carded", "run")
    assert code == 0, output
    assert output.count("could not be drawn") == 1


def test_a_step_can_do_without(flows: Flows) -> None:
    (flows.folder / "go-on").touch()
    code, output = flows.run("carded", "run", NO_CARD="1")
    assert code == 0, output
    assert not card_of(flows)


def test_a_second_card_of_that_type_is_refused(flows: Flows) -> None:
    code, output = flows.run("plain", "run", "--with", "gang", "--with", "card:type=gangline.run")
    assert code == 1
    assert "write card=False in @gang" in " ".join(output.split())
    code, output = flows.run("plain", "run", "--with", "gang:card=perhaps")
    assert code == 1
    assert "Give it True or False" in " ".join(output.split())


def test_what_metaflow_lists_of_the_task(flows: Flows) -> None:
    (flows.folder / "go-on").touch()
    code, output = flows.run("carded", "run")
    assert code == 0, output
    code, output = flows.run("carded", "card", "list", "start")
    assert code == 0, output
    assert "gangline.run" in output
