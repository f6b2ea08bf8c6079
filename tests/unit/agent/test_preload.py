from __future__ import annotations

import pytest

from gangline.agent.preload import decide_preload, is_read_at_start, path_start, scan_entry


def scan(tmp_path, files, *, entry="train.py", kind="script", search=()):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return scan_entry(kind, entry, str(tmp_path), search=search)


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "import torch"},
        {"train.py": "from torch import nn"},
        {"train.py": "def main():\n    import torch.distributed as dist"},
        {"train.py": "import lightning"},
        {"train.py": "import model", "model.py": "import torch"},
        {"train.py": "import a.b.c", "a/__init__.py": "", "a/b/__init__.py": "import torch", "a/b/c.py": ""},
        {"train.py": "from a import b", "a/b.py": "import torch"},
        {
            "train.py": "import a",
            "a/__init__.py": "from . import b",
            "a/b.py": "from .c import x",
            "a/c.py": "import torch",
        },
        {"train.py": "import a.b", "a/b.py": "from .. import up", "up.py": "", "a/__init__.py": "from torch import nn"},
    ],
)
def test_torch_is_found_wherever_the_code_leads_to_it(tmp_path, files):
    assert scan(tmp_path, files).uses_torch


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "import json"},
        {"train.py": "print('import torch')"},
        {"train.py": "import model", "unused.py": "import torch"},
        {"train.py": "def f(:"},
        {"train.py": "import torchless_thing"},
        {"other.py": "import torch"},
    ],
)
def test_torch_is_not_imported_for_code_that_does_not_reach_it(tmp_path, files):
    found = scan(tmp_path, files)
    assert not found.uses_torch
    assert decide_preload(found, ()) == ((), ())


def test_modules_are_looked_for_where_the_interpreter_would(tmp_path):
    files = {"src/train.py": "import near", "src/near.py": "import torch", "near.py": ""}
    assert scan(tmp_path, files, entry="src/train.py").uses_torch
    assert not scan(tmp_path, {"lib/far.py": "import torch", "t.py": "import far"}, entry="t.py").uses_torch
    assert scan(tmp_path, {}, entry="t.py", search=["lib", ""]).uses_torch


@pytest.mark.parametrize("file", ["pkg/run.py", "pkg/run/__init__.py", "pkg/run/__main__.py", "pkg/__init__.py"])
def test_an_entry_that_is_a_module_is_read_with_its_packages(tmp_path, file):
    assert scan(tmp_path, {"pkg/__init__.py": "", file: "import torch"}, entry="pkg.run", kind="module").uses_torch


def test_circles_and_large_trees_end(tmp_path):
    files = {f"m{n}.py": f"import m{n + 1}" for n in range(400)} | {
        "m400.py": "import torch",
        "train.py": "import m0, train",
    }
    assert not scan(tmp_path, files).uses_torch  # 400 files away is further than anybody looks


def test_a_file_too_large_to_read_is_left_out(tmp_path):
    assert not scan(tmp_path, {"train.py": "import torch\n" + "#" * 1_000_001}).uses_torch


@pytest.mark.parametrize(
    ("code", "is_slow"),
    [
        ("from torch.nn.parallel import DistributedDataParallel as D", True),
        ("opt = torch.optim.AdamW([])", True),
        ("from torch.optim import SGD", True),
        ("f = torch.compile(g)", True),
        ("from torch.distributed.fsdp import fully_shard", True),
        ("dist.all_reduce(x)", False),
    ],
)
def test_the_slow_part_of_torch_is_imported_for_code_that_will_need_it(tmp_path, code, is_slow):
    needed, wanted = decide_preload(scan(tmp_path, {"train.py": f"import torch\n{code}"}), ())
    assert needed == ("torch",)
    assert ("torch._dynamo" in wanted) == is_slow
    assert "torch.distributed" in wanted


def test_listed_modules_are_always_imported(tmp_path):
    assert decide_preload(scan(tmp_path, {"train.py": ""}), ("mine", "other")) == (("mine", "other"), ())


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'\nimport torch", {"OMP_NUM_THREADS"}),
        ("from os import environ\nif True:\n    environ['MKL_NUM_THREADS'] = '1'\nimport torch", {"MKL_NUM_THREADS"}),
        ("os.putenv('KMP_AFFINITY', '')\nimport torch", {"KMP_AFFINITY"}),
        ("os.environ.update(TORCH_LOGS='x')\nimport torch", {"TORCH_LOGS"}),
        ("os.environ.update({'TORCH_LOGS': 'x'})\nimport torch", {"TORCH_LOGS"}),
        ("del os.environ['LD_PRELOAD']\nimport torch", {"LD_PRELOAD"}),
        ("import torch\nos.environ['OMP_NUM_THREADS'] = '1'", set()),
        ("def f():\n    os.environ['OMP_NUM_THREADS'] = '1'\nimport torch", set()),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nos.environ['NCCL_DEBUG'] = '1'\nimport torch", set()),
        ("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'x'\nimport torch", set()),
        ("os.environ[name] = '1'\nother['OMP_NUM_THREADS'] = '1'\nimport torch", set()),
    ],
)
def test_variables_that_are_set_in_time_for_the_import_are_seen(tmp_path, code, variables):
    assert scan(tmp_path, {"train.py": f"import os\n{code}"}).early_variables == variables


def test_a_default_is_told_from_an_assignment(tmp_path):
    found = scan(tmp_path, {"train.py": "import os\nos.environ.setdefault('OMP_NUM_THREADS', '4')\nimport torch"})
    assert (found.early_variables, found.early_defaults) == (set(), {"OMP_NUM_THREADS"})


def test_what_comes_too_late_after_an_import():
    late = ["PYTHONHASHSEED", "OMP_NUM_THREADS", "LC_ALL", "LANG", "TORCH_LOGS", "PYTORCH_JIT", "LD_LIBRARY_PATH"]
    free = [
        "RANK",
        "CUDA_VISIBLE_DEVICES",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCHELASTIC_RUN_ID",
        "PATH",
    ]
    assert [is_read_at_start(name) for name in late + free] == [True] * len(late) + [False] * len(free)


def test_the_start_of_the_path(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/train.py").write_text("")
    (tmp_path / "link.py").symlink_to("real/train.py")
    assert path_start("script", "link.py", str(tmp_path)) == str(tmp_path / "real")
    assert path_start("script", "real/train.py", str(tmp_path)) == str(tmp_path / "real")
    assert path_start("module", "a.b", str(tmp_path)) == str(tmp_path)
