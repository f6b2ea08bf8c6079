"""Rows of the table of signatures: memory and accelerators. Pure data; standard library only."""

from __future__ import annotations

from gangline.domain.phase import Reason
from gangline.domain.signatures import Evidence, Pattern, Signature

__all__ = ["DEVICES", "MEMORY"]

_ANY_TORCH = r"(^|\.)(RuntimeError|OutOfMemoryError|AcceleratorError|Error|DistBackendError|runtime_error)$"

MEMORY = (
    Signature(
        id="device_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="ran out of memory of its accelerator",
        detail="asked for {tried} where {free} of {total} were free",
        hint="Lower the batch per rank, accumulate gradients, checkpoint activations, or shard the model over more ranks "
        "(FSDP). If memory seems free but in pieces, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        patterns=(
            Pattern(
                error=_ANY_TORCH,
                text=r"(?:CUDA|HIP|XPU|MPS backend) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+ ?\w+))?"
                r"(?:.*?total capacity of (?P<total>[\d.]+ ?\w+) of which (?P<free>[\d.]+ ?\w+) is free)?",
            ),
            Pattern(
                error=_ANY_TORCH, text=r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
            ),
            Pattern(error=r"^torch(\.\w+)*\.OutOfMemoryError$"),
        ),
        examples=(
            Evidence(
                error_type="torch.OutOfMemoryError",
                message="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
                "1.94 GiB is free. Process 4711 has 77.20 GiB memory in use.",
            ),
            Evidence(error_type="RuntimeError", message="CUDA error: out of memory"),
            Evidence(log="Epoch 3\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"),
        ),
    ),
    Signature(
        id="device_memory_xla",
        reason=Reason.OUT_OF_MEMORY,
        sentence="ran out of memory of its accelerator",
        hint="Lower the batch per rank, or shard parameters and activations over more devices; "
        "XLA_PYTHON_CLIENT_MEM_FRACTION says how much of a device JAX takes in advance.",
        patterns=(
            Pattern(
                error=r"XlaRuntimeError|JaxRuntimeError|ResourceExhaustedError|ValueError|^$", text="RESOURCE_EXHAUSTED"
            ),
            Pattern(error=r"(^|\.)ResourceExhaustedError$"),
        ),
        examples=(
            Evidence(
                error_type="jaxlib.xla_extension.XlaRuntimeError",
                message="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
            ),
            Evidence(
                error_type="tensorflow.python.framework.errors_impl.ResourceExhaustedError",
                message="{{function_node __wrapped__MatMul}} OOM when allocating tensor with shape[40000,40000]",
            ),
        ),
    ),
    Signature(
        id="neuron_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="ran out of memory of its Neuron device",
        hint="Lower the batch per rank, or raise the degree of tensor parallelism so that each core holds less.",
        patterns=(
            Pattern(text=r"NRT_RESOURCE\b|nrt_tensor_allocate.*status=4|status=4 message=\"?Allocation Failure"),
        ),
        examples=(Evidence(log='ERROR  TDRV:dmem_alloc  nrt_tensor_allocate status=4 message="Allocation Failure"'),),
    ),
    Signature(
        id="shared_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="ran out of shared memory (/dev/shm)",
        hint="Make /dev/shm larger (containers: --shm-size or --ipc=host), lower num_workers or prefetch_factor, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system").',
        patterns=(
            Pattern(text=r"killed by signal: Bus error|insufficient shared memory|out of shared memory"),
            Pattern(text=r"unable to (?:write to|open|mmap|resize|allocate) (?:file|shared memory).*(?:torch_|shm)"),
            Pattern(text=r"/dev/shm.*No space left on device|No space left on device.*/dev/shm"),
            Pattern(child=r"^data loader worker \d+ SIGBUS$"),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's "
                "workers are out of shared memory. Please try to raise your shared memory limit.",
            ),
            Evidence(
                log="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
                "(shm)."
            ),
            Evidence(
                error_type="RuntimeError",
                message="unable to write to file </torch_4711_1804289383_0>: No space left on device (28)",
            ),
        ),
    ),
    Signature(
        id="host_memory",
        reason=Reason.OUT_OF_MEMORY,
        sentence="ran out of memory",
        hint="Load less at once (memory-map, stream, fewer workers), ask for more with --memory, or use fewer ranks per node.",
        patterns=(
            Pattern(error=r"(^|\.)_?(Array)?MemoryError$"),
            Pattern(
                error=r"^RuntimeError$|^OSError$|bad_alloc|^subprocess",
                text=r"DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc|Cannot allocate memory|^(?:\w+\.)*MemoryError\b",
            ),
            Pattern(error="bad_alloc"),
        ),
        examples=(
            Evidence(error_type="MemoryError"),
            Evidence(
                error_type="numpy._core._exceptions._ArrayMemoryError",
                message="Unable to allocate 74.5 GiB for an array with shape (100000, 100000) and data type float64",
            ),
            Evidence(
                error_type="RuntimeError",
                message="[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)",
            ),
            Evidence(error_type="std::bad_alloc", message="std::bad_alloc", signal=6),
            Evidence(error_type="OSError", message="[Errno 12] Cannot allocate memory"),
        ),
    ),
)

DEVICES = (
    Signature(
        id="device_broken",
        reason=Reason.UNHEALTHY_NODE,
        sentence="met a broken accelerator",
        hint="Take the node out and look at `dmesg` and `nvidia-smi -q` there; the next attempt should run elsewhere.",
        patterns=(
            Pattern(
                text=r"uncorrectable (?:NVLink|ECC) error|ECC error|fallen off the bus|GPU is lost|Xid[ (:].*|"
                r"NVRM: |hardware stack error|CUDA error: (?:the launch timed out|.*NVLink)|HSA_STATUS_ERROR_HARDWARE"
            ),
        ),
        examples=(
            Evidence(error_type="RuntimeError", message="CUDA error: uncorrectable ECC error encountered"),
            Evidence(log="NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."),
        ),
    ),
    Signature(
        id="device_busy",
        reason=Reason.UNHEALTHY_NODE,
        sentence="could not use its accelerator",
        hint="Look on that node for other programs on the device (`nvidia-smi`), exclusive compute mode, and a driver that was "
        "updated without a reboot.",
        patterns=(
            Pattern(
                text=r"CUDA-capable device\(s\) is/are busy or unavailable|devices? (?:is|are) busy or unavailable|"
                r"Driver/library version mismatch|CUDA unknown error|system not yet initialized"
            ),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError", message="CUDA error: CUDA-capable device(s) is/are busy or unavailable"
            ),
            Evidence(log="Failed to initialize NVML: Driver/library version mismatch"),
        ),
    ),
    Signature(
        id="neuron_device",
        reason=Reason.UNHEALTHY_NODE,
        sentence="met a broken Neuron device",
        hint="Take the node out and look at `neuron-top` and `dmesg` there; the next attempt should run elsewhere.",
        patterns=(Pattern(text=r"NRT_(?:EXEC_)?HW_ERR\w*|NRT_EXEC_COMPLETED_WITH_ERR|NRT_TIMEOUT"),),
        examples=(Evidence(error_type="RuntimeError", message="nrt_execute failed: NRT_EXEC_HW_ERR_HBM_UE (1201)"),),
    ),
    Signature(
        id="neuron_start",
        reason=Reason.USER_ERROR,
        sentence="could not start the Neuron runtime",
        hint="Check NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES of each rank, that no other process holds the cores "
        "(`neuron-ls`), and that runtime, driver and compiler are of one release.",
        patterns=(
            Pattern(text=r"nrt_init.*|NRT_LOAD_NOT_ENOUGH_NC|NRT_EXEC_NC_BUSY|Logical Neuron Core\(s\) not available"),
            Pattern(text=r"\bNRT_(?!SUCCESS)[A-Z_]+\b"),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError", message="The PyTorch Neuron Runtime could not be initialized. nrt_init 1"
            ),
            Evidence(
                log="ERROR NRT:nrt_allocate_neuron_cores  Logical Neuron Core(s) not available - Requested:2 Available:0"
            ),
        ),
    ),
    Signature(
        id="device_assert",
        reason=Reason.USER_ERROR,
        sentence="failed an assertion inside of a GPU kernel",
        hint="Look for an index out of range: a label >= the number of classes, a token >= the vocabulary. Rerun with "
        "`--env CUDA_LAUNCH_BLOCKING=1` so that the trace shows the right line.",
        patterns=(Pattern(text="device-side assert"),),
        examples=(
            Evidence(error_type="RuntimeError", message="CUDA error: device-side assert triggered\nCUDA kernel errors"),
        ),
    ),
    Signature(
        id="device_illegal_access",
        reason=Reason.USER_ERROR,
        sentence="touched memory of its accelerator that it may not",
        hint="Rerun with `--env CUDA_LAUNCH_BLOCKING=1` to see where; suspect custom kernels and compiled extensions first, and "
        "the device if it is always the same node.",
        patterns=(Pattern(text=r"illegal memory access|misaligned address|unspecified launch failure"),),
        examples=(
            Evidence(
                error_type="torch.AcceleratorError", message="CUDA error: an illegal memory access was encountered"
            ),
        ),
    ),
    Signature(
        id="device_build",
        reason=Reason.USER_ERROR,
        sentence="has a PyTorch that was not built for its accelerator",
        hint="Install a build whose CUDA version and architectures fit the device and its driver: "
        "`python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'`.",
        patterns=(
            Pattern(
                text=r"no kernel image is available|not compiled with CUDA enabled|is not compatible with the current PyTorch"
            ),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="CUDA error: no kernel image is available for execution on the device",
            ),
            Evidence(error_type="AssertionError", message="Torch not compiled with CUDA enabled"),
        ),
    ),
    Signature(
        id="device_driver",
        reason=Reason.USER_ERROR,
        sentence="has a driver that is too old for its PyTorch",
        hint="Update the driver of the node, or install a PyTorch built for an older CUDA.",
        patterns=(Pattern(text=r"driver (?:version )?(?:on your system )?is (?:too old|insufficient)"),),
        examples=(
            Evidence(
                error_type="RuntimeError", message="The NVIDIA driver on your system is too old (found version 11040)."
            ),
            Evidence(error_type="RuntimeError", message="CUDA driver version is insufficient for CUDA runtime version"),
        ),
    ),
    Signature(
        id="device_number",
        reason=Reason.USER_ERROR,
        sentence="asked for an accelerator that is not there",
        hint="Pick the device by LOCAL_RANK, not by RANK, and see that there are as many as ranks on a node "
        "(`--procs-per-node`, `--gpus-per-node`, CUDA_VISIBLE_DEVICES).",
        patterns=(Pattern(text=r"invalid device ordinal|Invalid device id|Duplicate GPU detected"),),
        examples=(Evidence(error_type="RuntimeError", message="CUDA error: invalid device ordinal"),),
    ),
    Signature(
        id="no_device",
        reason=Reason.USER_ERROR,
        sentence="found no accelerator",
        hint="Ask for some with `--gpus-per-node`; `gangline pools` lists what there is.",
        patterns=(Pattern(text=r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver"),),
        examples=(Evidence(error_type="RuntimeError", message="No CUDA GPUs are available"),),
    ),
    Signature(
        id="cuda_in_fork",
        reason=Reason.USER_ERROR,
        sentence="used CUDA in a process that was forked after CUDA had started",
        hint='Start worker processes with `multiprocessing_context="spawn"`, or keep CUDA out of datasets and collate functions.',
        patterns=(Pattern(text="Cannot re-initialize CUDA in forked subprocess"),),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method",
            ),
        ),
    ),
)
