"""What is read of a machine, and what interpreters have answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gangline.agent.hostfacts import find_driver, read_host, relevant_variables
from gangline.agent.interpreter import KeptAnswers, parse_answer

NVIDIA = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@host)\n"
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 120
GPU UUID: \t GPU-5a2c
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_drivers_are_read_from_the_kernels_files(tmp_path: Path):
    assert find_driver(tmp_path) == {}
    write(tmp_path, "proc/driver/nvidia/version", NVIDIA)
    write(tmp_path, "sys/module/amdgpu/version", "6.8.5\n")
    assert find_driver(tmp_path) == {"nvidia": "535.183.01", "amd": "6.8.5"}


def test_the_open_driver_is_no_architecture(tmp_path: Path):
    write(tmp_path, "proc/driver/nvidia/version", OPEN)
    assert find_driver(tmp_path) == {"nvidia": "570.86.15"}


def test_a_machine(tmp_path: Path):
    write(tmp_path, "proc/driver/nvidia/gpus/0000:18:00.0/information", INFORMATION)
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7R13\nprocessor\t: 1\n")
    found = read_host(tmp_path)
    assert found["device_models"] == ["NVIDIA H100 80GB HBM3"]
    assert found["cpu_model"] == "AMD EPYC 7R13"
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 1 << 20
    assert found["limits"]["nofile"] > 0
    json.dumps(found)


def test_only_variables_that_matter_are_recorded():
    env = {"NCCL_DEBUG": "INFO", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "LANG": "C", "AWS_SECRET": "x"}
    assert relevant_variables(env) == {"NCCL_DEBUG": "INFO", "LANG": "C"}


def test_an_answer_is_the_last_line_that_is_one():
    assert parse_answer('hello\n{"packages": {"a": "1"}}\n[1]\nbye\n') == {"packages": {"a": "1"}}
    assert parse_answer("") is None
    assert parse_answer('{"packages": []}') is None


def answers(folder: Path, python: str = sys.executable, **env: str) -> KeptAnswers:
    return KeptAnswers(folder, python, env)


def test_an_answer_holds_until_a_package_is_installed(tmp_path: Path):
    site = tmp_path / "site-packages"
    site.mkdir()
    answer = {"packages": {}, "path": [str(site)]}
    kept = answers(tmp_path / "answers")
    assert kept.find() is None
    kept.keep(answer)
    assert kept.find() == answer
    (site / "new-1.0.dist-info").mkdir()
    assert kept.find() is None


def test_answers_of_other_interpreters_and_variables_are_others(tmp_path: Path):
    answers(tmp_path).keep({"packages": {}, "path": []})
    assert answers(tmp_path).find() is not None
    assert answers(tmp_path, PYTHONPATH="/x").find() is None
    assert answers(tmp_path, python="/usr/bin/other").find() is None


def test_what_a_wrapper_runs_is_asked_every_time(tmp_path: Path):
    wrapper = tmp_path / "python"
    wrapper.write_text('#!/bin/sh\nexec python3 "$@"\n')
    kept = answers(tmp_path / "answers", python=str(wrapper))
    kept.keep({"packages": {}, "path": []})
    assert kept.find() is None


def test_a_damaged_answer_is_asked_again(tmp_path: Path):
    kept = answers(tmp_path)
    kept.keep({"packages": {}, "path": []})
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert kept.find() is None
    assert KeptAnswers(None, sys.executable, {}).find() is None
