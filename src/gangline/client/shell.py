"""What a run takes from the shell that submits it: its interpreter and some of its variables.

Standard library and `gangline.domain` alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gangline.domain.errors import SpecInvalid

__all__ = ["INHERITED", "environment_prefix", "find_python", "inherited_variables"]

INHERITED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_*",
    "HF_*",
    "HUGGINGFACE_*",
    "TRANSFORMERS_*",
    "TOKENIZERS_PARALLELISM",
    "TORCH_*",
    "TORCHINDUCTOR_*",
    "PYTORCH_*",
    "NCCL_*",
    "GLOO_*",
    "OMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "KMP_*",
    "CUDA_HOME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "XDG_*",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)
"""Names of variables that a run on the local pool has from its shell; `*` at the end: all that begin so."""
_NAMES = frozenset(INHERITED)
_BEGINNINGS = tuple(name.removesuffix("*") for name in INHERITED if name.endswith("*"))
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL")
_TOOL_RECEIPTS = ("uv-receipt.toml", "pipx_metadata.json")
"""Files that mark an environment which holds one tool and no one's training code."""


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that `INHERITED` names, but none that looks like a secret: those are for `--env` and `--secret`."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and not _is_secret(name, value)
    }


def find_python(asked: str | None, *, cwd: Path, root: Path, environ: Mapping[str, str]) -> Path:
    """The interpreter of the ranks, absolute; links are not followed, as a virtual environment is known by its link.

    Args:
        asked: an interpreter, its name on PATH, or the folder of an environment; None: the active environment, else
            `.venv` in the project, else the one that Gangline is installed in, else python3 on PATH.
        cwd: what a relative path starts from.
    Raises:
        SpecInvalid: there is none where one was named.
    """
    if asked is not None:
        return _python_at(asked, "`--python`", cwd, environ)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name):
            return _python_at(environ[name], f"The active environment ({name})", cwd, environ)
    if (root / ".venv" / "bin" / "python").exists():
        return root / ".venv" / "bin" / "python"
    if sys.prefix != sys.base_prefix and not any((Path(sys.prefix) / name).exists() for name in _TOOL_RECEIPTS):
        return Path(sys.executable)
    found = shutil.which("python3", path=environ.get("PATH"))
    return Path(found).absolute() if found else Path(sys.executable)


def environment_prefix(python: Path) -> Path | None:
    """The virtual or conda environment that an interpreter belongs to."""
    prefix = python.parent.parent
    marks = (prefix / "pyvenv.cfg", prefix / "conda-meta")
    return prefix if any(mark.exists() for mark in marks) else None


def _python_at(asked: str, who: str, cwd: Path, environ: Mapping[str, str]) -> Path:
    on_path = None if "/" in asked or (cwd / asked).exists() else shutil.which(asked, path=environ.get("PATH"))
    path = Path(on_path or cwd / Path(asked).expanduser()).absolute()
    if path.is_dir():
        names = [path / "bin" / name for name in ("python", "python3")]
        path = next((name for name in names if name.exists()), names[0])
    if not path.exists():
        raise SpecInvalid(
            f"{who} is `{asked}`, and there is no {path}",
            fix="Name an interpreter, or the folder of a virtual or conda environment, with --python.",
        )
    if path.is_dir() or not os.access(path, os.X_OK):
        raise SpecInvalid(
            f"{who} is `{asked}`, and {path} cannot be executed", fix="Name another interpreter with --python."
        )
    return path


def _is_secret(name: str, value: str) -> bool:
    if name.lower().endswith("_proxy"):
        return "@" in value  # a password in a URL
    return name not in INHERITED and any(word in name.upper() for word in _SECRET_WORDS)
