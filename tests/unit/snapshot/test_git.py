from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.snapshot.git import parse_status

pytestmark = pytest.mark.git


def write(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def paths_of(packed) -> list[str]:
    return [entry.path for entry in packed.manifest.files]


@pytest.fixture
def repo(project, git) -> Path:
    git(project, "init", "-q")
    write(project, "train.py", "lib/a.py", text="old\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    return project


def test_a_clean_repository(repo, git, packed) -> None:
    git(repo, "remote", "add", "origin", "https://me:secret@example.org/p.git")
    code = packed(repo).manifest.code
    assert code.commit == git(repo, "rev-parse", "HEAD").strip()
    assert (code.branch, code.dirty, code.diff, code.untracked) == ("main", False, "", ())
    assert code.remote == "https://example.org/p.git"


def test_the_tree_is_the_working_tree(repo, git, packed) -> None:
    write(repo, "train.py", text="staged\n")
    git(repo, "add", "train.py")
    write(repo, "train.py", text="unstaged\n")
    write(repo, "new.py", "lib/staged.py")
    git(repo, "add", "lib/staged.py")
    (repo / "lib/a.py").unlink()
    result = packed(repo)
    assert paths_of(result) == ["lib/staged.py", "new.py", "train.py"]
    assert result.sources[result.manifest.find("train.py").digest].read_text() == "unstaged\n"
    assert result.manifest.code.dirty
    assert "+unstaged" in result.manifest.code.diff
    assert "deleted file" in result.manifest.code.diff
    assert result.manifest.code.untracked == ("new.py",)


def test_what_git_ignores_is_left_out_with_its_rule(repo, packed) -> None:
    write(repo, ".gitignore", text="*.log\nbuild/\n")
    write(repo, "a.log", "lib/b.log", "build/x/y", "logs/c.log")
    (repo / ".git/info/exclude").write_text("private\n")
    write(repo, "private")
    result = packed(repo)
    assert paths_of(result) == [".gitignore", "lib/a.py", "logs", "train.py"]
    found = {item.rule: (item.path, item.num_files) for item in result.manifest.code.excluded}
    assert found == {
        ".gitignore:1: *.log": ("./", 3),
        ".gitignore:2: build/": ("build/", 1),
        ".git/info/exclude:1: private": ("private", 1),
    }


def test_an_include_wins_over_git(repo, packed) -> None:
    """Case E2."""
    write(repo, ".gitignore", text="config.yaml\nbuild/\n")
    write(repo, "config.yaml", "build/x", "build/y")
    result = packed(repo, include=["config.yaml", "build/x"])
    assert paths_of(result) == [".gitignore", "build/x", "config.yaml", "lib/a.py", "train.py"]


def test_tracked_files_count_also_where_git_would_ignore_them(repo, git, packed) -> None:
    write(repo, ".gitignore", text="*.bin\n")
    write(repo, "weights.bin")
    git(repo, "add", "-f", "weights.bin")
    assert "weights.bin" in paths_of(packed(repo))


def test_the_own_ignore_file_leaves_out_tracked_files(repo, git, packed) -> None:
    write(repo, "data/big.bin")
    write(repo, ".ganglineignore", text="data/\n")
    git(repo, "add", ".")
    assert "data/big.bin" not in paths_of(packed(repo))


def test_empty_folders(repo, packed) -> None:
    (repo / "out/empty").mkdir(parents=True)
    assert "out/empty" in paths_of(packed(repo))


def test_before_the_first_commit(project, git, packed) -> None:
    git(project, "init", "-q")
    write(project, "train.py", "new.py")
    git(project, "add", "train.py")
    result = packed(project)
    assert paths_of(result) == ["new.py", "train.py"]
    code = result.manifest.code
    assert (code.commit, code.branch, code.dirty, code.diff, code.untracked) == (None, "main", True, "", ("new.py",))


def test_a_detached_head(repo, git, packed) -> None:
    git(repo, "checkout", "-q", "--detach")
    code = packed(repo).manifest.code
    assert code.branch is None
    assert code.commit is not None


def test_a_worktree(repo, git, packed, tmp_path) -> None:
    other = tmp_path / "other"
    git(repo, "worktree", "add", "-q", "-b", "side", str(other))
    write(other, ".gitignore", text="*.log\n")
    write(other, "a.log")
    result = packed(other)
    assert paths_of(result) == [".gitignore", "lib/a.py", "train.py"]
    assert result.manifest.code.branch == "side"


def test_submodules_are_packed_as_they_are(repo, git, packed, tmp_path) -> None:
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q")
    write(upstream, "mod.py", text="old\n")
    write(upstream, ".gitignore", text="*.o\n")
    git(upstream, "add", ".")
    git(upstream, "commit", "-qm", "first")
    git(repo, "submodule", "--quiet", "add", str(upstream), "vendor/mod")
    git(repo, "commit", "-qm", "submodule")
    write(repo, "vendor/mod/mod.py", text="new\n")
    write(repo, "vendor/mod/extra.py", "vendor/mod/a.o")
    result = packed(repo)
    inner = [path for path in paths_of(result) if path.startswith("vendor/")]
    assert inner == ["vendor/mod/.gitignore", "vendor/mod/extra.py", "vendor/mod/mod.py"]
    assert result.sources[result.manifest.find("vendor/mod/mod.py").digest].read_text() == "new\n"
    assert "vendor/mod/extra.py" in result.manifest.code.untracked
    assert "vendor/mod/a.o" in {item.path for item in result.manifest.code.excluded}
    assert "+new" in result.manifest.code.diff


def test_a_nested_clone_that_is_no_submodule(repo, git, packed) -> None:
    inner = repo / "clone"
    inner.mkdir()
    git(inner, "init", "-q")
    write(inner, "x.py", "y.log")
    write(inner, ".gitignore", text="*.log\n")
    assert [path for path in paths_of(packed(repo)) if path.startswith("clone/")] == ["clone/.gitignore", "clone/x.py"]


def test_a_project_inside_a_repository(repo, packed) -> None:
    write(repo, ".gitignore", text="*.log\n/sub/out/\n")
    write(repo, "sub/train.py", "sub/a.log", "sub/out/x", "elsewhere.py")
    result = packed(repo / "sub")
    assert paths_of(result) == ["train.py"]
    assert result.manifest.code.commit is not None
    assert result.manifest.code.untracked == ("train.py",)
    assert {item.path: item.rule for item in result.manifest.code.excluded} == {
        "a.log": ".gitignore:1: *.log",
        "out/": ".gitignore:2: /sub/out/",
    }


def test_a_project_that_the_repository_around_it_ignores(repo, packed) -> None:
    write(repo, ".gitignore", text="scratch/\n")
    write(repo, "scratch/train.py", "scratch/a.log")
    write(repo, "scratch/.gitignore", text="*.log\n")
    result = packed(repo / "scratch")
    assert paths_of(result) == [".gitignore", "train.py"]
    assert result.manifest.code.commit is None


def test_odd_names_in_git(repo, packed) -> None:
    write(repo, ".gitignore", text="*.log\n")
    names = ["new\nline.log", "sp ace.log", 'quo"te.log', "é.log"]
    write(repo, *names)
    (repo / os.fsdecode(b"\xff.log")).write_text("x")
    (item,) = packed(repo).manifest.code.excluded
    assert (item.num_files, item.rule) == (5, ".gitignore:1: *.log")
    assert "\\xff.log" in item.examples


def test_without_the_program_gitignore_is_read_all_the_same(repo, packed, monkeypatch, tmp_path) -> None:
    write(repo, ".gitignore", text="*.log\n")
    write(repo, "a.log")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    result = packed(repo)
    assert paths_of(result) == [".gitignore", "lib/a.py", "train.py"]
    assert result.manifest.code.commit is None
    assert "git cannot be run" in result.warnings[0]


def test_a_broken_repository_is_said_and_packed(project, packed) -> None:
    write(project, "train.py", ".git/junk")
    result = packed(project)
    assert paths_of(result) == ["train.py"]
    assert "git does not answer" in result.warnings[0]


def test_a_hook_around_us_does_not_redirect_git(repo, packed, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert packed(repo).manifest.code.commit is not None


def test_a_huge_diff_is_cut(repo, packed) -> None:
    write(repo, "train.py", text="line of text\n" * 200_000)
    diff = packed(repo).manifest.code.diff
    assert len(diff) < (1 << 20) + 100
    assert diff.endswith("[cut at 1 MiB]\n")


def test_parse_status_reads_renames_and_conflicts() -> None:
    raw = (
        b"# branch.oid abc\0# branch.head main\0"
        b"2 R. N... 100644 100644 100644 a b R100 new.py\0? old.py\0"
        b"u UU N... 100644 100644 100644 100644 a b c both.py\0? other.py\0! x.log\0"
    )
    status = parse_status(raw)
    assert (status.dirty, status.untracked, status.ignored) == (True, ("other.py",), frozenset({"x.log"}))
