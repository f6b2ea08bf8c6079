"""Ready projects: a training script, its spec and the project's defaults, as files that come with Gangline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import gangline
from gangline.domain.errors import InvalidRequest, nearest

__all__ = ["RUN_FILE", "Template", "default_template", "find_template", "list_templates"]

RUN_FILE = "run.yaml"
_FOLDER = Path(gangline.__file__).parent / "templates"
_COMMON = {"gangline.yaml": "gangline.yaml", ".ganglineignore": "ganglineignore"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One of them."""

    name: str
    summary: str
    folder: Path
    """Holds the script and `RUN_FILE`, its spec."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its own files, as they are packed."""
        return tuple(sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file()))

    @property
    def defaults(self) -> Path:
        """The `gangline.yaml` that goes with it."""
        return _FOLDER / "common" / _COMMON["gangline.yaml"]

    def read(self) -> Mapping[str, str]:
        """The files of a new project, by name."""
        own = {name: (self.folder / name).read_text(encoding="utf-8") for name in self.names}
        common = {name: (_FOLDER / "common" / stored).read_text(encoding="utf-8") for name, stored in _COMMON.items()}
        return {**own, **common}


def list_templates() -> list[Template]:
    """All of them, by name."""
    folders = [path.parent for path in sorted(_FOLDER.glob(f"*/{RUN_FILE}"))]
    return [Template(name=folder.name, summary=_summary(folder), folder=folder) for folder in folders]


def find_template(name: str) -> Template:
    """The template of that name.

    Raises:
        InvalidRequest: there is none; the nearest is named.
    """
    found = {template.name: template for template in list_templates()}
    if name not in found:
        raise InvalidRequest(
            f"There is no template `{name}`", fix=f"{nearest(name, found)} `gangline template` describes them."
        )
    return found[name]


def default_template() -> Template:
    """What `gangline init` writes where nothing is named."""
    return find_template("plain" if find_spec("torch") is None else "torch")


def _summary(folder: Path) -> str:
    """The comment that its spec begins with."""
    return (folder / RUN_FILE).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
