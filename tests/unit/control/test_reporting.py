"""A report: everything that is known, nothing that is secret, nothing that a browser would run."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from gangline.control.reporting import ReportFile
from gangline.domain.errors import InvalidRequest
from gangline.domain.spec import EntryKind
from gangline.rundir.serving import ensure_token
from gangline.snapshot.ignore import is_report
from gangline.testing.secrets import FORMS, WAYS, WAYS_OF_NAMED

EVIL = "<img src=x onerror=alert(1)>"
PLANTED = {
    "HF_TOKEN": "planted-one-1234",
    "DB_PASSWORD": 'planted "two" & more',
    "MY_KEY": "line-one-abc\nline-two-abc",
}


@pytest.fixture
def run(plant) -> str:
    """A failed run whose every text tries to do harm, or to tell a secret."""
    made = plant.submit(
        name=f"n{EVIL}",
        entry="sleep",
        entry_kind=EntryKind.COMMAND,
        args=("--token", "planted-three-99", EVIL),
        env={**PLANTED, "PLAIN": "shown"},
        labels={"evil": EVIL},
    )
    plant.tick()
    leader = plant.leader(made)
    leader.begin()
    for step in range(50):
        leader.log({f"loss{EVIL}": 1.0 / (step + 1)}, step=step)
    attempt = plant.home.run(made).attempt(0)
    secrets = "\n".join([*PLANTED.values(), repr(PLANTED), leader.told["token"], ensure_token(plant.home)])
    attempt.log(0).write_text(f"{EVIL}\n{secrets}\n" + "AKIAIOSFODNN7EXAMPLE filler\n" * 20_000 + "the very end\n")
    attempt.stacks(0).write_text(f"Thread 0x1 {EVIL} {PLANTED['HF_TOKEN']}\n")
    failure = {"rank": 0, "node": 0, "host": EVIL, "exit_code": 1, "error_type": "ValueError"}
    failure |= {"error_message": f"{EVIL} {PLANTED['HF_TOKEN']}", "traceback": f"Traceback {PLANTED['DB_PASSWORD']}"}
    leader.end("failed", message=f"It died of {EVIL}", first_failure={**failure, "time": 1.0, "log_tail": EVIL})
    plant.tick()
    plant.backend.kill(made)
    plant.tick(3)
    return made


def secrets_of(plant, run) -> list[str]:
    told = plant.leader(run).told
    planted = [*PLANTED.values(), "planted-three-99", "line-two-abc", "AKIAIOSFODNN7EXAMPLE"]
    return [*planted, told["token"], ensure_token(plant.home), "planted &#34;two"]


def content_of(made: ReportFile) -> bytes:
    with made.file:
        content = made.file.read()
    assert len(content) == made.size_bytes
    return content


def test_a_page_shows_what_happened_and_runs_nothing(plant, run):
    made = plant.commands.report(run, form="html")
    page = content_of(made).decode()
    assert EVIL not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    for shown in ("user_error", "ValueError", "the very end", "Thread 0x1", "PLAIN", "<svg", "bytes in the middle"):
        assert shown in page, shown
    for word in ("<script", "http://", "https://", "src=", "href="):
        assert word not in page.replace("&lt;img src=x", ""), word


@pytest.mark.parametrize("form", ["html", "zip"])
def test_snapshots_know_it_under_any_name(plant, run, form, tmp_path):
    path = tmp_path / f"mine.{form}"
    path.write_bytes(content_of(plant.commands.report(run, form=form)))
    assert is_report(str(path))


@pytest.mark.parametrize("form", ["html", "zip"])
def test_no_secret_is_in_it(plant, run, form):
    made = plant.commands.report(run, form=form)
    texts = [content_of(made)]
    if form == "zip":
        archive = zipfile.ZipFile(io.BytesIO(texts[0]))
        assert f"gangline-report-{run}/attempts/0/rank-00000.log" in archive.namelist()
        assert f"gangline-report-{run}/report.html" in archive.namelist()
        texts = [archive.read(name) for name in archive.namelist()]
    for secret in secrets_of(plant, run):
        assert not any(secret.encode() in text for text in texts), secret
    assert made.removed > 5


def test_secrets_of_known_forms_are_in_no_file_however_they_got_there(plant):
    made = plant.submit(entry="sleep", entry_kind=EntryKind.COMMAND, args=("--hf-token", "argtok6666", "5"))
    plant.tick()
    leader = plant.leader(made)
    leader.begin()
    named, argument = "Planted7Secret5", "argtok6666"
    texts = [way(form) for way in WAYS.values() for form in FORMS.values()]
    texts += [way(named) for way in WAYS_OF_NAMED.values()] + [f"plain {argument} here"]
    attempt = plant.home.run(made).attempt(0)
    attempt.log(0).write_text("\n".join(texts))
    attempt.stacks(0).write_text("\n".join(texts))
    (attempt.path / "more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"to')
    (attempt.path / "more.json").write_text(json.dumps({text: [text] for text in texts}, indent=1))
    failure = {"rank": 0, "node": 0, "host": "here", "exit_code": 1, "error_type": "ValueError", "time": 1.0}
    failure |= {"error_message": "\n".join(texts), "traceback": "\n".join(texts), "log_tail": "\n".join(texts)}
    leader.end("failed", message="\n".join(texts), first_failure=failure)
    plant.tick()
    plant.backend.kill(made)
    plant.tick(3)
    page = content_of(plant.commands.report(made, form="html"))
    archive = zipfile.ZipFile(io.BytesIO(content_of(plant.commands.report(made, form="zip"))))
    files = {"page": page, **{name: archive.read(name) for name in archive.namelist()}}
    assert f"gangline-report-{made}/attempts/0/more.jsonl" in files
    assert f"gangline-report-{made}/attempts/0/result.json" in files
    told = [
        (name, secret)
        for name, data in files.items()
        for secret in [*FORMS.values(), named, argument]
        if secret[-10:].encode() in data
    ]
    assert told == []
    assert [name for name, data in files.items() if b"Secret5" in data] == []


def test_a_run_that_has_done_nothing_has_a_report_too(plant):
    assert b"queued" in plant.commands.report(plant.submit(), form="html").file.read()


def test_another_form_is_refused(plant):
    with pytest.raises(InvalidRequest, match="no form `pdf`"):
        plant.commands.report(plant.submit(), form="pdf")
