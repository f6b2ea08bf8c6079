from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.redact import REMOVED, Redactor, looks_secret, secret_values, secret_words
from gangline.testing.secrets import FORMS, WAYS, WAYS_OF_NAMED

SECRETS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=6, max_size=40).filter(
    lambda text: REMOVED not in text and text not in REMOVED
)
TEXTS = st.text(max_size=60)


@pytest.mark.parametrize(
    "name",
    [
        "MYSQL_PWD",
        "--db-pwd",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "apiKey",
        "--db-password",
        "KEY",
        "WANDB_API_KEY",
        "PAT",
    ],
)
def test_names_that_say_so(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "OLD_PWD", "PATH", "TOKENIZERS_PARALLELISM", "tokens_per_s", "OMP_NUM_THREADS", "author"]
)
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
        ('{"api_key": "abc"}', f'{{"api_key": "{REMOVED}"}}'),
        ("--hf-token abcdef", f"--hf-token {REMOVED}"),
        ("['--hf-token', 'abcdef', '--lr', '1']", f"['--hf-token', '{REMOVED}', '--lr', '1']"),
        ("AccountName=a;AccountKey=YWJjZA==;x=1", f"AccountName=a;AccountKey={REMOVED};x=1"),
        ("sig: \x1b[31mred\x1b[0m", "sig: red"),
        ("SSH_AUTH=abcdef", f"SSH_AUTH={REMOVED}"),
    ],
)
def test_what_is_said_to_be_a_secret_is_removed_and_the_rest_stays(text, left):
    assert Redactor().text(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "PWD=/home/ada OLDPWD=/tmp",
        '["token", "loss", "step"]',
        "--tokenizer bert --key-bits 2",
        "the token budget is large",
        "machine learning: the password field of the form",
        "| tokens | 1200 |",
        "| key | value |",
        "PASS: test_that_all_is_well",
        "disk_usage_of_the_whole_node=1",
        f"HF_TOKEN={REMOVED} --api-key '{REMOVED}'",
        "loss 0.5 at step 3",
        "https://host/path?x=1",
        "tokens_per_s=1200",
        "key of the spec",
        "a@b.c",
        "",
    ],
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_known_forms_are_removed_however_they_got_there(form, way):
    secret = FORMS[form]
    text = WAYS[way](secret)
    for clean in (Redactor().text(text), Redactor().json(text)):
        assert secret not in clean
        assert secret[-10:] not in clean


@pytest.mark.parametrize("way", WAYS_OF_NAMED)
def test_what_a_name_tells_is_removed_however_it_is_written(way):
    text = WAYS_OF_NAMED[way]("Planted7Secret5")
    for clean in (Redactor().text(text), Redactor().json(text)):
        assert "Secret5" not in clean


@given(
    st.sampled_from(
        [(way, form) for way in WAYS.values() for form in FORMS.values()]
        + [(way, "Planted7Secret5") for way in WAYS_OF_NAMED.values()]
    ),
    TEXTS,
    TEXTS,
)
def test_what_stands_around_hides_no_secret(planted, before, after):
    way, secret = planted
    assert secret not in Redactor().text(f"{before}\n{way(secret)}\n{after}")
    assert secret not in Redactor().json(json.dumps({"a": [before, way(secret)]}) + "\n" + json.dumps(after))


@pytest.mark.parametrize("distance", range(-60, 8, 3))
def test_a_secret_between_two_windows_is_found(distance):
    text = "." * ((1 << 15) + distance) + FORMS["github"] + "\nHF_TOKEN=abcdef"
    assert Redactor().text(text).endswith(f".{REMOVED}\nHF_TOKEN={REMOVED}")


def test_json_stays_json_and_what_is_none_is_cleaned_as_text():
    redactor = Redactor()
    lines = f'{{"env": {{"KEY": "ab"}}, "n": 1.5}}\n\n{{"argv": ["--token", "abc"]}}\n{{"text": "x\\n{FORMS["slack"]}'
    first, empty, second, torn = redactor.json(lines).split("\n")
    assert json.loads(first) == {"env": {"KEY": REMOVED}, "n": 1.5}
    assert empty == ""
    assert json.loads(second) == {"argv": ["--token", REMOVED]}
    assert torn == f'{{"text": "x\\n{REMOVED}'
    assert redactor.removed == 3
    deep = "[" * 100_000 + FORMS["slack"]
    assert FORMS["slack"] not in redactor.json(deep)


def test_values_among_a_command_s_words():
    words = ["--hf-token", "one-one", "--lr", "1", "--api-key=two-two", "db.password=three", "--auth", "--x", "y=z"]
    assert list(secret_words(words)) == ["one-one", "two-two", "three"]


UNITS = ["x", "-", "_", "=", " ", "\\", '"', "a9", "0123456789abcdef", "aZ-_", "eyJ", "eyJa.", "token", "token=", "sk-"]
UNITS += ["pwd='", "--token ", "://", "KEY ", "basic ", "-----BEGIN ", "\x1b[", "\\n", 'token="', 'pass\\"', REMOVED]


@pytest.mark.parametrize("unit", UNITS)
def test_the_work_grows_with_the_length_whatever_the_text(unit):
    def cost_s(size: int) -> float:
        begin_s = time.thread_time()
        Redactor(["known-secret"]).text((unit * size)[:size])
        return time.thread_time() - begin_s

    small_s = cost_s(20_000)
    assert small_s < 5
    assert cost_s(320_000) < 64 * small_s + 0.5
