"""Invented secrets of each known form, and the ways in which they get into texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

__all__ = ["FORMS", "WAYS", "WAYS_OF_NAMED"]

_FILLER = "Zq7Xw2Vt9Rb4Nm6Lk8"
FORMS: Mapping[str, str] = {
    "github": f"ghp_{_FILLER}{_FILLER}",
    "github-fine": f"github_pat_11{_FILLER}",
    "gitlab": f"glpat-{_FILLER}",
    "huggingface": f"hf_{_FILLER}{_FILLER}",
    "openai": f"sk-proj-{_FILLER}{_FILLER}",
    "slack": f"xoxb-123456789012-{_FILLER}",
    "google": f"AIzaSy{_FILLER}{_FILLER}",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{_FILLER}",
    "npm": f"npm_{_FILLER}{_FILLER}",
}
"""Removed for what they look like, whatever stands around them."""
WAYS: Mapping[str, Callable[[str], str]] = {
    "line": lambda secret: f"before\n{secret}\nafter",
    "json": lambda secret: json.dumps({"text": f"before\n{secret}\tafter"}),
    "json in json": lambda secret: json.dumps(json.dumps([f"\n{secret}"])),
    "repr": lambda secret: repr(["x", f"before\n{secret}"]),
    "argv": lambda secret: repr(["train.py", "--data", secret]),
    "url": lambda secret: f"GET /x?a=%20{secret}&b=1",
    "coloured": lambda secret: f"\x1b[31m{secret}\x1b[0m",
    "colour within": lambda secret: f"x {secret[:9]}\x1b[1m{secret[9:]} y",
    "colour in json": lambda secret: json.dumps(f"{secret[:9]}\x1b[1m{secret[9:]}\x1b[0m"),
}
WAYS_OF_NAMED: Mapping[str, Callable[[str], str]] = {
    "flag": lambda secret: f"train.py --hf-token {secret} --lr 1",
    "flag=": lambda secret: f"train.py --hf-token={secret} --lr 1",
    "argv": lambda secret: repr(["train.py", "--hf-token", secret, "--lr"]),
    "argv json": lambda secret: json.dumps(["train.py", "--api-key", secret]),
    "argv in json": lambda secret: json.dumps({"text": repr(["--hf-token", secret])}),
    "argv json in json": lambda secret: json.dumps({"text": json.dumps(["--hf-token", secret])}),
    "argv in lines": lambda secret: f"['--db-password',\n '{secret}']",
    "argv of a process": lambda secret: f"train.py\0--hf-token\0{secret}\0",
    "variable": lambda secret: f"first\nMYSQL_PWD={secret}\n",
    "variable in json": lambda secret: json.dumps(f"first\nMYSQL_PWD={secret}"),
    "variables": lambda secret: repr({"HOME": "/root", "WANDB_API_KEY": secret}),
    "pairs": lambda secret: repr([("WANDB_API_KEY", secret)]),
    "namespace": lambda secret: f"Namespace(hf_token='{secret}', lr=1)",
    "bytes": lambda secret: f"DB_PASSWORD: {secret.encode()!r}",
    "set": lambda secret: f"os.environ['HF_TOKEN'] = '{secret}'",
    "numbered": lambda secret: f"HF_TOKEN_2={secret} API_KEY3={secret}",
    "arrow": lambda secret: f"HF_TOKEN -> {secret}",
    "cookie": lambda secret: f"Set-Cookie: a=b; session={secret}; Path=/",
    "other scheme": lambda secret: f"curl -H 'Authorization: token {secret}'",
    "encoded": lambda secret: f"?q=%7B%22token%22%3A%22{secret}%22%7D",
    "torn": lambda secret: f'{{"password": "{secret}',
    "azure": lambda secret: f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={secret};EndpointSuffix=y",
    "webhook": lambda secret: f"post https://hooks.slack.com/services/T0000/B0000/{secret}",
    "address": lambda secret: f"postgresql://ada:{secret}@db/x",
    "header": lambda secret: json.dumps({"text": f"x\nAuthorization: Bearer {secret}"}),
    "netrc": lambda secret: f"machine db.example login ada password {secret}\nmachine other",
    "netrc lines": lambda secret: f"machine db.example\n  login ada\n  password {secret}\n",
    "netrc in json": lambda secret: json.dumps(f"default\nlogin ada\npassword {secret}\n"),
    "table": lambda secret: f"| name | value |\n|---|---|\n| DB_PASSWORD | {secret} |\n",
    "boxes": lambda secret: f"│ api_key     │ {secret}  │",
    "colour within": lambda secret: f"HF_TOKEN=\x1b[1m{secret[:3]}\x1b[0m{secret[3:]}",
}
"""Removed for what stands before them."""
