from __future__ import annotations

import hashlib
import os
import socket
import zipfile
from pathlib import Path

import pytest

from gangline.domain.errors import SnapshotRefused
from gangline.snapshot.manifest import FileEntry
from gangline.snapshot.pack import Limits, find_root, pack
from gangline.snapshot.tally import count_folder


def write(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def paths_of(packed) -> list[str]:
    return [entry.path for entry in packed.manifest.files]


def rules_of(packed) -> dict[str, tuple[str, int | None]]:
    return {item.rule: (item.path, item.num_files) for item in packed.manifest.code.excluded}


def test_contents_modes_and_sizes(project, packed) -> None:
    write(project, "train.py", text="print(1)\n")
    write(project, "run.sh", text="#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "train.py").chmod(0o644)
    result = packed(project)
    sha = hashlib.sha256(b"print(1)\n").hexdigest()
    assert result.manifest.find("train.py") == FileEntry(path="train.py", kind="file", mode=0o644, size=9, digest=sha)
    assert result.manifest.find("run.sh").mode == 0o755
    assert result.sources[sha].read_bytes() == b"print(1)\n"
    assert result.manifest.code.commit is None
    assert result.manifest.code.diff is None
    assert result.manifest.code.root == str(project)


def test_an_empty_project_is_an_empty_tree(project, packed) -> None:
    assert packed(project).manifest.files == ()


def test_equal_trees_have_equal_digests_wherever_they_lie(tmp_path, packed) -> None:
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        write(folder, "train.py", "lib/x.py")
        digests.append(packed(folder).manifest.digest)
    write(tmp_path / "b", "lib/y.py")
    assert digests[0] == digests[1] != packed(tmp_path / "b").manifest.digest


def test_empty_folders_are_kept_and_full_ones_follow_from_their_files(project, packed) -> None:
    write(project, "src/a.py")
    (project / "out/logs").mkdir(parents=True)
    result = packed(project)
    assert paths_of(result) == ["out/logs", "src/a.py"]
    assert result.manifest.find("out/logs").kind == "dir"


def test_folders_with_a_mode_of_their_own_are_listed(project, packed) -> None:
    for name, mode in {"plain": 0o755, "mine": 0o700, "shared": 0o775, "ignored": 0o711, "sticky": 0o1755}.items():
        (project / name).mkdir()
        (project / name / "file").touch()
        (project / name).chmod(mode)
    (project / ".gitignore").write_text("ignored/\n")
    found = packed(project, include=["ignored/file"]).manifest
    modes = {entry.path: entry.mode for entry in found.files if entry.kind == "dir"}
    assert modes == {"mine": 0o700, "shared": 0o775, "ignored": 0o711}
    assert found.num_files == 6


def test_odd_names(project, packed) -> None:
    for name in ["with\nnewline", "with space", "quo'te\"s", "émoji 🐕", "-dash", "back\\slash", "*"]:
        write(project, name)
    (project / os.fsdecode(b"latin-\xe9")).write_text("x")
    result = packed(project)
    assert len(result.manifest.files) == 8
    assert result.manifest.find(os.fsdecode(b"latin-\xe9")) is not None


def test_gitignore_without_git(project, packed) -> None:
    write(project, ".gitignore", text="*.log\n!keep.log\n/data/\n")
    write(project, "a.log", "keep.log", "data/big.bin", "data/more/x", "sub/data/kept", "sub/b.log", "train.py")
    write(project, "sub/.gitignore", text="kept\n")
    result = packed(project)
    assert paths_of(result) == [".gitignore", "keep.log", "sub/.gitignore", "sub/data", "train.py"]
    assert rules_of(result) == {
        ".gitignore:1: *.log": ("./", 2),
        ".gitignore:3: /data/": ("data/", 2),
        "sub/.gitignore:1: kept": ("sub/data/kept", 1),
    }


def test_what_was_left_out_is_counted_and_named(project, packed) -> None:
    write(project, ".ganglineignore", text="data/\n")
    write(project, "data/a", "data/b/c", text="12345")
    (item,) = packed(project).manifest.code.excluded
    assert item.to_dict() == {
        "path": "data/",
        "rule": ".ganglineignore:1: data/",
        "num_files": 2,
        "size_bytes": 10,
        "examples": ["data/"],
    }


def test_huge_ignored_folders_are_not_counted_to_the_end(project) -> None:
    write(project, "data/a", "data/b", "data/c", "data/d")
    assert count_folder(project / "data", 3) is None
    assert count_folder(project / "data", 4) == (4, 4)


def test_caches_and_environments_are_left_out_by_the_built_in_list(project, packed) -> None:
    write(project, "train.py", ".venv/bin/python", "node_modules/x/y.js", "pkg/__pycache__/a.pyc", "myenv/lib/x.py")
    write(project, "myenv/pyvenv.cfg", "gangline-report-train-2abc.html")
    result = packed(project)
    assert paths_of(result) == ["pkg", "train.py"]
    assert set(rules_of(result)) == {
        "built-in list: .venv",
        "built-in list: node_modules",
        "built-in list: __pycache__",
        "built-in list: virtual environments",
        "built-in list: reports of Gangline",
    }


def test_what_gangline_has_written_is_known_by_what_is_in_it(project, packed) -> None:
    write(project, "train.py", "mine.html", "mine.zip", "logs/rank-0003.attempt-1.log", "logs/gangline-logs.json")
    write(project, "logs/notes.txt", "other/rank-0003.attempt-1.log")
    (project / "run.html").write_text('<html>\n<meta name="generator" content="gangline report">\n' + "x" * 9000)
    with zipfile.ZipFile(project / "run.ZIP", "w") as archive:
        archive.writestr("gangline-report-train-2abc/run.json", "{}")
    result = packed(project)
    assert paths_of(result) == [
        "logs/notes.txt",
        "mine.html",
        "mine.zip",
        "other/rank-0003.attempt-1.log",
        "train.py",
    ]
    assert set(rules_of(result)) == {
        "built-in list: logs that Gangline has downloaded",
        "built-in list: reports of Gangline",
    }
    assert "run.ZIP" in paths_of(packed(project, include=["run.ZIP"]))


def test_the_state_folder_is_never_packed(project) -> None:
    write(project, "train.py", "state/objects/aa/bb")
    result = pack(project, home=project / "state", include=["*"])
    assert paths_of(result) == ["train.py"]
    assert "the state folder of Gangline" in rules_of(result)


def test_an_ignored_file_that_is_needed_is_reported_and_an_include_wins(project, packed) -> None:
    """Case E2."""
    write(project, ".gitignore", text="config.yaml\n")
    write(project, "train.py", "config.yaml")
    without = packed(project)
    assert "config.yaml" not in paths_of(without)
    assert rules_of(without) == {".gitignore:1: config.yaml": ("config.yaml", 1)}
    with_it = packed(project, include=["config.yaml"])
    assert "config.yaml" in paths_of(with_it)
    assert with_it.manifest.code.excluded == ()


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("data/small/", ["data/small/a", "data/small/b"]),
        ("data/small/a", ["data/small/a"]),
        ("data/*/a", ["data/large/a", "data/small/a"]),
        ("/data/large", ["data/large/a"]),
        ("./data/large", ["data/large/a"]),
        ("**/b", ["data/small/b"]),
        ("node_modules/x", ["node_modules/x/i.js"]),
        ("data", ["data/large/a", "data/small/a", "data/small/b"]),
    ],
)
def test_includes_reach_into_ignored_folders(project, packed, include, expected) -> None:
    write(project, ".ganglineignore", text="data/\n")
    write(project, "data/small/a", "data/small/b", "data/large/a", "node_modules/x/i.js", "node_modules/y/i.js")
    result = packed(project, include=[include])
    assert [path for path in paths_of(result) if path != ".ganglineignore"] == expected


def test_an_include_that_names_nothing_is_refused_and_a_pattern_is_warned_about(project, packed) -> None:
    write(project, "train.py")
    with pytest.raises(SnapshotRefused, match=r"conifg\.yaml names nothing"):
        packed(project, include=["conifg.yaml"])
    assert "*.yaml matches nothing" in packed(project, include=["*.yaml"]).warnings[0]


def test_the_own_ignore_file_can_bring_back_what_git_ignores(project, packed) -> None:
    write(project, ".gitignore", text="*.yaml\n")
    write(project, ".ganglineignore", text="!config.yaml\n")
    write(project, "config.yaml", "other.yaml")
    assert paths_of(packed(project)) == [".ganglineignore", ".gitignore", "config.yaml"]


def test_links_inside_stay_and_absolute_ones_lead_into_the_copy(project, packed) -> None:
    write(project, "lib/a.py")
    (project / "same").symlink_to("lib/a.py")
    (project / "lib/up").symlink_to("../lib")
    (project / "absolute").symlink_to(project / "lib/a.py")
    (project / "dangling").symlink_to("nowhere")
    (project / "loop").symlink_to("loop")
    (project / "detour").symlink_to("../project/lib")
    result = packed(project)
    targets = {entry.path: entry.target for entry in result.manifest.files if entry.kind == "link"}
    assert targets == {
        "same": "lib/a.py",
        "lib/up": "../lib",
        "absolute": "lib/a.py",
        "dangling": "nowhere",
        "loop": "loop",
        "detour": "lib",
    }
    assert len(result.warnings) == 2


def test_links_that_lead_out(project, packed, tmp_path) -> None:
    write(tmp_path, "outside/data.txt", text="outside")
    (project / "file").symlink_to("../outside/data.txt")
    (project / "folder").symlink_to(tmp_path / "outside")
    (project / "gone").symlink_to("../nowhere")
    result = packed(project)
    assert result.manifest.find("file").digest == hashlib.sha256(b"outside").hexdigest()
    assert result.manifest.find("folder").target == str(tmp_path / "outside")
    assert result.manifest.find("gone").target == str(tmp_path / "nowhere")
    assert len(result.warnings) == 3


def test_pipes_and_sockets_are_skipped_with_a_word(project, packed) -> None:
    write(project, "train.py")
    os.mkfifo(project / "pipe")
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(project)
        try:
            listener.bind("sock")
        finally:
            os.chdir(here)
        result = packed(project)
    assert paths_of(result) == ["train.py"]
    assert rules_of(result) == {"neither file nor folder (socket, pipe or device)": ("./", 2)}


def test_a_huge_file_is_refused_with_the_way_out(project, packed) -> None:
    write(project, "train.py")
    with (project / "model.bin").open("wb") as sparse:
        sparse.truncate(5 * 10**9)
    with pytest.raises(SnapshotRefused, match=r"model\.bin has 5\.00 GB") as caught:
        packed(project)
    assert ".ganglineignore" in caught.value.fix
    write(project, ".ganglineignore", text="*.bin\n")
    assert paths_of(packed(project)) == [".ganglineignore", "train.py"]


def test_too_much_in_total_names_the_largest(project, packed) -> None:
    write(project, "small", text="x")
    write(project, "large", text="x" * 100)
    with pytest.raises(SnapshotRefused, match="allowed") as caught:
        packed(project, limits=Limits(max_total_bytes=50))
    assert "large" in caught.value.why.split(",")[0]


def test_too_many_files_end_the_walk(project, packed) -> None:
    write(project, *(f"f{number}" for number in range(20)))
    with pytest.raises(SnapshotRefused, match="more than 10 files"):
        packed(project, limits=Limits(max_files=10))


def test_unreadable_things_are_named(project, packed, monkeypatch) -> None:
    write(project, "secret")
    real = os.open

    def refuse(path, *args, **options):
        if os.fspath(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SnapshotRefused, match="secret cannot be read") as caught:
        packed(project)
    assert "Permission denied" in caught.value.why


def test_an_illegal_pattern_is_named(project, packed) -> None:
    write(project, ".ganglineignore", text="!\n")
    write(project, "train.py")
    with pytest.raises(SnapshotRefused, match="ganglineignore cannot be read"):
        packed(project)


class TestFindRoot:
    def test_nearest_project_file_wins(self, tmp_path) -> None:
        write(tmp_path, "a/gangline.yaml", "a/b/train.py")
        (tmp_path / ".git").mkdir()
        assert find_root(tmp_path / "a/b") == tmp_path / "a"

    def test_top_of_git(self, tmp_path) -> None:
        write(tmp_path, "a/b/train.py")
        (tmp_path / ".git").write_text("gitdir: elsewhere\n")
        assert find_root(tmp_path / "a/b") == tmp_path

    def test_the_folder_itself(self, tmp_path) -> None:
        assert find_root(tmp_path) == tmp_path

    def test_root_and_home_are_refused(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(SnapshotRefused, match="home folder"):
            find_root(tmp_path)
        with pytest.raises(SnapshotRefused, match="root of the file system"):
            find_root(Path("/"))

    def test_a_home_under_git_is_not_the_project(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".git").mkdir()
        write(tmp_path, "gangline.yaml", "project/train.py")
        assert find_root(tmp_path / "project") == tmp_path / "project"

    def test_a_wrong_folder_is_named(self, tmp_path) -> None:
        with pytest.raises(SnapshotRefused, match="no folder"):
            find_root(tmp_path / "nowhere")


STEP = "step-0000000100.attempt-000"


def test_checkpoints_of_gangline_are_known_by_their_content_and_left_out(project, packed) -> None:
    write(
        project,
        "train.py",
        f"saved/{STEP}/model.pt",
        f"saved/{STEP}/manifest.json",
        "saved/.saving/x",
        "saved/notes.md",
    )
    (project / "saved/latest").symlink_to(STEP)
    write(project, f"only/{STEP}/model.pt", "only/.saving/y", "begun/.saving/z")
    result = packed(project)
    assert paths_of(result) == ["saved/notes.md", "train.py"]
    assert "built-in list: checkpoints of Gangline" in rules_of(result)


def test_what_is_only_called_like_a_checkpoint_is_packed(project, packed) -> None:
    (project / "other").mkdir()
    names = ["checkpoints/weights.py", f"data/{STEP}/table.csv", "step-1/manifest.json", "plain/latest", "x/.saving/a"]
    write(project, *names, "x/code.py")
    assert paths_of(packed(project)) == sorted([*names, "other", "x/code.py"])


def test_a_project_that_is_a_checkpoint_folder_itself_keeps_its_code(project, packed) -> None:
    write(project, "train.py", f"{STEP}/model.pt", f"{STEP}/manifest.json")
    assert paths_of(packed(project)) == ["train.py"]


@pytest.mark.parametrize("include", ["saved/", f"saved/{STEP}", "**/*.pt"])
def test_checkpoints_can_be_included(project, packed, include: str) -> None:
    write(project, f"saved/{STEP}/model.pt", f"saved/{STEP}/manifest.json")
    got = paths_of(packed(project, include=[include]))
    assert (f"saved/{STEP}/model.pt" in got) is (include != "**/*.pt")  # as everywhere on the built-in list


def test_the_projects_own_ignore_file_brings_checkpoints_in(project, packed) -> None:
    write(project, f"saved/{STEP}/manifest.json")
    write(project, ".ganglineignore", text="!saved/step-*\n")
    assert f"saved/{STEP}/manifest.json" in paths_of(packed(project))
