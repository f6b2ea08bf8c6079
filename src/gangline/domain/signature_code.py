"""Rows of the table of signatures: programs, storage, imports and the script itself. Pure data; standard library only."""

from __future__ import annotations

from gangline.domain.phase import Reason
from gangline.domain.signatures import Evidence, Pattern, Signature

__all__ = ["IMPORTS", "PROGRAMS", "SCRIPT", "STORAGE"]

_OS = r"^(OSError|IOError|RuntimeError|PermissionError|FileNotFoundError|zipfile\.BadZipFile|safetensors.*)$"

PROGRAMS = (
    Signature(
        id="not_found",
        reason=Reason.USER_ERROR,
        sentence="failed with exit code 127: a program was not found",
        hint="Check the spelling, and that the program is on PATH on that node (`--env PATH=...`, `--python`).",
        patterns=(Pattern(exit_codes=frozenset({127})),),
        examples=(Evidence(exit_code=127, log="bash: line 1: trian: command not found"),),
    ),
    Signature(
        id="not_executable",
        reason=Reason.USER_ERROR,
        sentence="failed with exit code 126: a program could not be executed",
        hint="Make it executable (`chmod +x`), give it a first line such as `#!/bin/bash`, or name its interpreter.",
        patterns=(Pattern(exit_codes=frozenset({126})),),
        examples=(Evidence(exit_code=126, log="bash: ./train.sh: Permission denied"),),
    ),
)

STORAGE = (
    Signature(
        id="disk_full",
        reason=Reason.STORAGE,
        sentence="could not write, since the disk is full",
        hint="Make room, or point `--checkpoint-path` and caches (TMPDIR, HF_HOME) at a larger disk; `--keep-last` bounds what "
        "checkpoints take. Then `gangline resume`; with another folder, `gangline rerun RUN --from-checkpoint latest --checkpoint-path DIR`.",
        patterns=(
            Pattern(error=_OS, text=r"No space left on device"),
            Pattern(
                error=r"^(RuntimeError|.*SafetensorError)$",
                text=r"PytorchStreamWriter failed writing|I/O error: No space",
            ),
        ),
        examples=(
            Evidence(error_type="OSError", message="[Errno 28] No space left on device: '/data/ckpt'"),
            Evidence(
                error_type="RuntimeError",
                message="[enforce fail at inline_container.cc:603] . unexpected pos 1024 vs 912",
                causes=(("OSError", "[Errno 28] No space left on device"),),
            ),
            Evidence(log="cp: error writing '/scratch/x': No space left on device", exit_code=1),
        ),
    ),
    Signature(
        id="write_cut_off",
        reason=Reason.STORAGE,
        sentence="could not write the whole of a file",
        hint="See whether the disk of that file is full or over its quota (`df -h`, `quota`): `torch.save` does not say which. "
        "Make room, or point `--checkpoint-path` at a larger disk, then `gangline resume`.",
        patterns=(Pattern(text=r"basic_ios::clear: iostream error"),),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
                causes=(("RuntimeError", "basic_ios::clear: iostream error"),),
            ),
        ),
    ),
    Signature(
        id="quota",
        reason=Reason.STORAGE,
        sentence="could not write, since a quota is used up",
        hint="Remove what you do not need, or ask for more quota. Then `gangline resume`; to save elsewhere: `gangline rerun RUN --from-checkpoint latest --checkpoint-path DIR`.",
        patterns=(Pattern(error=_OS, text=r"Disk quota exceeded"),),
        examples=(Evidence(error_type="OSError", message="[Errno 122] Disk quota exceeded"),),
    ),
    Signature(
        id="read_only",
        reason=Reason.STORAGE,
        sentence="could not write, since the file system may only be read",
        hint="Write somewhere else; where it should be writable, see on the node why it was mounted so (`dmesg`, `mount`).",
        patterns=(Pattern(error=_OS, text=r"(?i)Read-only file system"),),
        examples=(Evidence(error_type="OSError", message="[Errno 30] Read-only file system: '/data/x'"),),
    ),
    Signature(
        id="stale_handle",
        reason=Reason.STORAGE,
        sentence="could not use a file, since its server has replaced it",
        hint="Mount the network file system again on that node, and do not replace data under a run that reads it.",
        patterns=(Pattern(error=_OS, text=r"Stale (?:NFS )?file handle|Transport endpoint is not connected"),),
        examples=(Evidence(error_type="OSError", message="[Errno 116] Stale file handle: '/mnt/data/shard-7'"),),
    ),
    Signature(
        id="disk_broken",
        reason=Reason.STORAGE,
        sentence="could not read or write, since the disk reported an error",
        hint="Look at `dmesg` on that node; a network file system may have lost its server.",
        patterns=(Pattern(error=_OS, text=r"\[Errno 5\] Input/output error|Remote I/O error"),),
        examples=(Evidence(error_type="OSError", message="[Errno 5] Input/output error: '/mnt/data/x'"),),
    ),
    Signature(
        id="too_many_files",
        reason=Reason.USER_ERROR,
        sentence="had too many files open",
        hint="Raise the limit (`ulimit -n`), lower num_workers, close files in the dataset, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system").',
        patterns=(Pattern(text=r"Too many open files|received 0 items of ancdata"),),
        examples=(
            Evidence(error_type="OSError", message="[Errno 24] Too many open files: 'shard-00017.tar'"),
            Evidence(error_type="RuntimeError", message="received 0 items of ancdata"),
        ),
    ),
    Signature(
        id="too_many_processes",
        reason=Reason.USER_ERROR,
        sentence="could start no more threads or processes",
        hint="Lower num_workers and OMP_NUM_THREADS, or raise the limit (`ulimit -u`, the pids limit of a container).",
        patterns=(
            Pattern(
                text=r"can't start new thread|fork: .*Resource temporarily unavailable|fork: retry|pthread_create failed"
            ),
            Pattern(error="^BlockingIOError$", text="Resource temporarily unavailable"),
        ),
        examples=(Evidence(error_type="RuntimeError", message="can't start new thread"),),
    ),
    Signature(
        id="permission",
        reason=Reason.USER_ERROR,
        sentence="may not do what it tried",
        hint="Check owner and mode of the path on that node; the ranks run as the user who submitted.",
        patterns=(Pattern(error="^PermissionError$"), Pattern(error="^OSError$", text=r"Permission denied")),
        examples=(Evidence(error_type="PermissionError", message="[Errno 13] Permission denied: '/data/x'"),),
    ),
    Signature(
        id="file_missing",
        reason=Reason.USER_ERROR,
        sentence="did not find a file",
        hint="Check the path on that node. Relative paths start in the run's own copy of the code: `gangline show {run} --full` lists "
        "what was packed and what was left out; data is better named by its absolute path.",
        patterns=(Pattern(error="^FileNotFoundError$"),),
        examples=(
            Evidence(error_type="FileNotFoundError", message="[Errno 2] No such file or directory: 'data/x.bin'"),
        ),
    ),
    Signature(
        id="checkpoint_torn",
        reason=Reason.USER_ERROR,
        sentence="could not read a saved file, which is damaged or not what it should be",
        hint="Save inside of `gangline.checkpoint()`, so that only complete ones are found; `gangline checkpoints {run}` lists them.",
        patterns=(
            Pattern(
                text=r"PytorchStreamReader failed|failed finding central directory|invalid load key|pickle data was truncated|"
                r"InvalidHeaderDeserialization|HeaderTooLarge|MetadataIncompleteBuffer"
            ),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="PytorchStreamReader failed reading zip archive: failed finding central directory",
            ),
        ),
    ),
)

IMPORTS = (
    Signature(
        id="module_missing",
        reason=Reason.USER_ERROR,
        sentence="could not import `{module}`",
        hint="Install it for {python}, or name the environment that has it with `--python`. If it is your own file, see with "
        "`gangline show {run} --full` that it was packed.",
        patterns=(Pattern(error="^ModuleNotFoundError$", text=r"No module named '?(?P<module>[\w.\-]+)"),),
        examples=(Evidence(error_type="ModuleNotFoundError", message="No module named 'flash_attn'"),),
    ),
    Signature(
        id="library_missing",
        reason=Reason.USER_ERROR,
        sentence="could not load the library `{library}`",
        hint="Install the release that {python} was set up for: a package was built against a library (most often of CUDA) that "
        "is not there, or LD_LIBRARY_PATH hides it.",
        patterns=(
            Pattern(
                error="ImportError|^OSError$",
                text=r"(?<![\w.+\-])(?P<library>[\w.+\-]+): cannot open shared object file",
            ),
            Pattern(error="ImportError|^OSError$", text=r"/(?P<library>[\w.+\-]+): version `?\S+'? not found"),
        ),
        examples=(
            Evidence(
                error_type="ImportError",
                message="libcudart.so.12: cannot open shared object file: No such file or directory",
            ),
            Evidence(
                error_type="ImportError",
                message="/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x.so)",
            ),
        ),
    ),
    Signature(
        id="undefined_symbol",
        reason=Reason.USER_ERROR,
        sentence="could not load a compiled package, which was built for another version of what it uses",
        hint="Rebuild or reinstall that package against the PyTorch that {python} has.",
        patterns=(Pattern(error="ImportError|^OSError$", text="undefined symbol"),),
        examples=(
            Evidence(
                error_type="ImportError",
                message="flash_attn_2_cuda.cpython-311.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
            ),
        ),
    ),
    Signature(
        id="module_hidden",
        reason=Reason.USER_ERROR,
        sentence="could not import `{module}`, in which something else was imported that needs it",
        hint="Look at the trace for a file of your own: one with the name of a package or module (random.py, cuda.py, torch.py) is "
        "imported in its place; rename it.",
        patterns=(Pattern(text=r"partially initialized module '(?P<module>[\w.]+)'"),),
        examples=(
            Evidence(
                error_type="AttributeError",
                message="partially initialized module 'torch' has no attribute 'zeros' (most likely due to a circular import)",
            ),
            Evidence(
                error_type="ImportError",
                message="cannot import name 'nn' from partially initialized module 'torch' (most likely due to a circular import)",
            ),
        ),
    ),
    Signature(
        id="import_failed",
        reason=Reason.USER_ERROR,
        sentence="could not import what it needs",
        hint="Compare the versions that {python} has with those that the code was written for; a file of your own with the name of a "
        "package hides it.",
        patterns=(Pattern(error="^ImportError$"),),
        examples=(Evidence(error_type="ImportError", message="cannot import name 'Foo' from 'transformers'"),),
    ),
)

SCRIPT = (
    Signature(
        id="state_dict",
        reason=Reason.USER_ERROR,
        sentence="could not load weights into its model",
        hint="Build the model with the sizes that the checkpoint has (keys may also carry a `module.` prefix of DDP), or start fresh "
        "with another `--checkpoint-path` or `--resume never`.",
        patterns=(Pattern(text=r"Error\(s\) in loading state_dict|size mismatch for |Missing key\(s\) in state_dict"),),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="Error(s) in loading state_dict for GPT:\n\tsize mismatch for head.weight: copying a param with shape",
            ),
        ),
    ),
    Signature(
        id="not_finite",
        reason=Reason.USER_ERROR,
        sentence="met numbers that are not finite",
        hint="Resume from an earlier checkpoint with a lower learning rate, clip gradients, look at the data of that step; "
        "torch.autograd.set_detect_anomaly(True) shows where the first NaN comes from.",
        patterns=(
            Pattern(
                error=r"^(AssertionError|ValueError|RuntimeError|FloatingPointError|Exception)$",
                text=r"(?i)\b(?:nan|inf)\b.*\b(?:loss|grad\w*|values?)\b|\b(?:loss|grad\w*|values?)\b.*\b(?:nan|inf|infinite)\b"
                r"|not finite|non-finite|returned nan",
            ),
            Pattern(error="^FloatingPointError$"),
        ),
        examples=(
            Evidence(error_type="ValueError", message="loss is not finite"),
            Evidence(error_type="AssertionError", message="Loss is nan, stopping training"),
            Evidence(
                error_type="RuntimeError",
                message="Function 'LogSoftmaxBackward0' returned nan values in its 0th output.",
            ),
        ),
    ),
    Signature(
        id="unused_parameters",
        reason=Reason.USER_ERROR,
        sentence="has parameters that took no part in the loss",
        hint="Pass find_unused_parameters=True to DistributedDataParallel, or see that every output of forward() is used on all ranks.",
        patterns=(Pattern(text="Expected to have finished reduction in the prior iteration"),),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="Expected to have finished reduction in the prior iteration before starting a new one.",
            ),
        ),
    ),
    Signature(
        id="spawn_guard",
        reason=Reason.USER_ERROR,
        sentence="started worker processes while it was being imported by one",
        hint='Put what the script does under `if __name__ == "__main__":`.',
        patterns=(Pattern(text=r"before the\s+current process has finished its\s+bootstrapping"),),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="An attempt has been made to start a new process before the\n        current process has finished its "
                "bootstrapping phase.",
            ),
            Evidence(
                error_type="RuntimeError",
                message="An attempt has been made to start a new process before the current process has finished its bootstrapping",
            ),
        ),
    ),
    Signature(
        id="asked_stdin",
        reason=Reason.USER_ERROR,
        sentence="asked for input, which ranks do not have",
        hint="Give the answer in advance: an argument, a variable (`--env`), or the offline mode of the library that asks.",
        patterns=(Pattern(error="^EOFError$", text="EOF when reading a line"),),
        examples=(Evidence(error_type="EOFError", message="EOF when reading a line"),),
    ),
    Signature(
        id="arguments",
        reason=Reason.USER_ERROR,
        sentence="did not understand its arguments",
        hint="Compare what stands after the script's name with what it takes: `gangline show {run}` prints the command.",
        patterns=(
            Pattern(
                text=r"^(?:\S+: error: |Error: (?=No such option))(?P<said>.{1,200})|unrecognized arguments",
                exit_codes=frozenset({2}),
            ),
        ),
        examples=(
            Evidence(
                log="usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 3", exit_code=2
            ),
        ),
    ),
    Signature(
        id="syntax",
        reason=Reason.USER_ERROR,
        sentence="holds code that Python cannot read",
        hint="Correct the line in the trace; where it looks right, {python} may be older than the code.",
        patterns=(Pattern(error="^(SyntaxError|IndentationError|TabError)$"),),
        examples=(Evidence(error_type="SyntaxError", message="invalid syntax (train.py, line 7)"),),
    ),
    Signature(
        id="assertion",
        reason=Reason.USER_ERROR,
        sentence="failed an assertion",
        hint="Read the trace: the assertion is the training code's own, or that of a library that it uses.",
        patterns=(Pattern(error="^AssertionError$"),),
        examples=(Evidence(error_type="AssertionError", message="batch size must divide by 8"),),
    ),
)
