from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.redact import REMOVED, Redactor, looks_secret, secret_values

SECRETS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=6, max_size=40).filter(
    lambda text: REMOVED not in text and text not in REMOVED
)
TEXTS = st.text(max_size=60)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "apiKey", "--db-password", "KEY", "WANDB_API_KEY", "PAT"],
)
def test_names_that_say_so(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "TOKENIZERS_PARALLELISM", "tokens_per_s", "OMP_NUM_THREADS", "author"])
def test_names_that_do_not(name):
    assert not looks_secret(name)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0123456789abcdef",
        "hf_abcdefghijklmnopqrstuvwxyz012345",
        "sk-proj-abcdefghijklmnop0123456789",
        "xoxb-123456789012-abcdefghijkl",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc/def+\nghi=\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_tokens_of_known_forms_are_removed_wherever_they_stand(secret):
    redactor = Redactor()
    for text in (f"x {secret} y", f"'{secret}'", f'{{"a": "{secret}"}}', f"?q={secret}&b"):
        assert secret not in redactor.text(text)
    assert redactor.removed >= 4


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://ada:pass@word@host/x", f"https://{REMOVED}@host/x"),
        ("postgresql://u:p@db:5432", f"postgresql://{REMOVED}@db:5432"),
        ("Authorization: Bearer abcdef012345", f"Authorization: Bearer {REMOVED}"),
        ("export DB_PASSWORD=hunter22 now", f"export DB_PASSWORD={REMOVED} now"),
        ("train --hf-token abcdef --lr 1", f"train --hf-token {REMOVED} --lr 1"),
        ('{"api_key": "abc"}', f'{{"api_key": {REMOVED}}}'),
        ("SSH_AUTH=abcdef", f"SSH_AUTH={REMOVED}"),
    ],
)
def test_what_is_said_to_be_a_secret_is_removed_and_the_rest_stays(text, left):
    assert Redactor().text(text) == left


@pytest.mark.parametrize(
    "text",
    ["loss 0.5 at step 3", "https://host/path?x=1", "tokens_per_s=1200", "key of the spec", "a@b.c", ""],
)
def test_what_is_no_secret_stays(text):
    redactor = Redactor()
    assert redactor.text(text) == text
    assert redactor.removed == 0


def test_variables_keys_and_words_after_flags():
    redactor = Redactor()
    value = {
        "env": {"KEY": "ab", "LANG": "C"},
        "key": "resources.nodes",
        "token": "abc",
        "args": ["--token", "abc", "--lr", "1", "--password=abcd"],
    }
    assert redactor.value(value) == {
        "env": {"KEY": REMOVED, "LANG": "C"},
        "key": "resources.nodes",
        "token": REMOVED,
        "args": ["--token", REMOVED, "--lr", "1", f"--password={REMOVED}"],
    }
    assert redactor.removed == 4


@given(SECRETS, TEXTS, TEXTS)
def test_a_known_secret_is_in_no_form_in_what_comes_out(secret, before, after):
    known = secret_values({"DB_PASSWORD": secret, "LANG": "C"})
    assert known == [secret]
    raw = secret.encode()
    forms = [secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(raw, safe=""), base64.b64encode(raw).decode()]
    redactor = Redactor(known)
    for form in forms:
        assert form not in redactor.text(f"{before} {form} {after}").replace(REMOVED, "")
    nested = redactor.value({"a": [{before: f"{after} {secret}"}, secret], secret: 1})
    assert secret not in json.dumps(nested, ensure_ascii=False).replace(REMOVED, "")


def test_each_line_of_a_key_is_a_secret():
    redactor = Redactor(["first-line\nsecond-line\n"])
    assert redactor.text("found second-line here") == f"found {REMOVED} here"
