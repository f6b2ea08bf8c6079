"""`gangline init`: a small training script to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import click

from gangline.cli.terminal import say
from gangline.domain.errors import Conflict, InvalidRequest

__all__ = ["command"]

_TEMPLATES = "templates/init"


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--plain", is_flag=True, help="A script without PyTorch; the default where torch is not installed.")
def command(*, folder: Path, plain: bool) -> None:
    """Write a small training script and gangline.yaml into a folder.

    A .ganglineignore comes with them: what is not packed. FOLDER is made if it is not there [default: this one].
    Nothing that exists is overwritten.
    """
    script = "train_plain.py" if plain or find_spec("torch") is None else "train_torch.py"
    contents = {"train.py": _read(script), "gangline.yaml": _read("gangline.yaml")}
    contents[".ganglineignore"] = _read("ganglineignore")
    try:
        _write_new(folder, contents)
    except OSError as error:
        raise InvalidRequest(
            f"{folder} cannot be written to",
            why=error.strerror or str(error),
            fix="Name another folder: gangline init FOLDER",
        ) from error
    where = "" if folder == Path() else f"cd {folder} && "
    say(f"Wrote {', '.join(contents)}. Next:\n\n  {where}gangline submit --follow train.py --steps 300")


def _write_new(folder: Path, contents: Mapping[str, str]) -> None:
    """Write all files or none.

    Raises:
        Conflict: one of them is there already.
    """
    there = [name for name in contents if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise Conflict(
            f"{' and '.join(there)} is there already"
            if len(there) == 1
            else f"{' and '.join(there)} are there already",
            why="Nothing is overwritten.",
            fix="Name an empty folder: gangline init FOLDER",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)


def _read(name: str) -> str:
    return (files("gangline") / _TEMPLATES / name).read_text(encoding="utf-8")
