"""Rows of the table of signatures: ranks that do not find, or lose, one another. Pure data; standard library only."""

from __future__ import annotations

from gangline.domain.phase import Reason
from gangline.domain.signatures import Evidence, Pattern, Signature

__all__ = ["LEFT_EARLY", "TALK"]

_PEERS = r"(^|\.)(\w*RuntimeError|Dist\w*Error|IoException)$|^(std|c10|gloo)::"
_OWN = r"^(Connection(Reset|Aborted|Refused)?Error|BrokenPipeError)$"
"""What Python raises of a socket. PyTorch, NCCL, MPI and JAX never talk to other ranks through one."""
_CLIENTS = (
    r"^(aiobotocore|aiohttp|azure|boto3|botocore|fsspec|gcsfs|google|grpc|http\.client|httpcore|httpx|huggingface_hub|mlflow|"
    r"psycopg2?|pymongo|pymysql|redis|requests|s3fs|sqlalchemy|urllib\.error|urllib3|wandb|websockets?)\."
)
"""Packages that speak to services."""
_NO_ANSWER = (
    r"(?i)^(?!.*CERTIFICATE_VERIFY_FAILED).*(?:connection (?:was |is |has been )?(?:closed|reset|refused|aborted|lost|broken|timed out)|"
    r"remote end closed|max retries exceeded|(?:read|connect\w*|operation) timed out|time-?out (?:on|while|exceeded)|"
    r"could ?n[o']t connect|could not connect|server (?:disconnected|closed|has gone away)|\[Errno (?:32|104|110|111|113)\])"
)
_AGAIN = (
    "Look at the trace for what it talked to (object store, database, tracker, HTTP), and repeat such calls in the code, with a "
    "pause between them."
)
_LOOK = (
    "Look at the rank that went first: `gangline show {run}` names it, `gangline logs {run} --rank N` has its output."
)

LEFT_EARLY = Signature(
    id="left_early",
    reason=Reason.USER_ERROR,
    sentence="ended with exit code 0 while another rank still communicated with it",
    hint="See that all ranks take the same number of steps and call the same collectives: uneven data, an early `break` or "
    "`return` on one rank, a last save that one rank skips.",
    patterns=(),
)
"""Found by the agent from how all ranks ended: the first that failed says that it lost another one."""

TALK = (
    LEFT_EARLY,
    Signature(
        id="collective_timeout",
        reason=Reason.HANG,
        sentence="waited in vain for the other ranks",
        detail="in {op}",
        hint="Find the rank that did not come to the collective: one that took another branch, had fewer batches, or was busy "
        "saving or loading. Raise the `timeout` of init_process_group only if such work is meant to take that long.",
        consequence=True,
        patterns=(
            Pattern(text=r"Watchdog caught collective operation timeout(?:.*?OpType=(?P<op>\w+))?"),
            Pattern(
                text=r"Timed out waiting \d+ ?ms for (?:recv|send) operation|Some NCCL operations have failed or timed out"
            ),
            Pattern(text=r"Rank \d+ failed to pass monitoredBarrier|Timed out.*(?:Barrier|allreduce)"),
        ),
        examples=(
            Evidence(
                error_type="c10::DistBackendError",
                message="[PG 1 Rank 6] Process group watchdog thread terminated with exception: [Rank 6] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=199, OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=600000) ran for "
                "882722 milliseconds before timing out.",
                signal=6,
            ),
            Evidence(
                error_type="RuntimeError",
                message="[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
                "operation to complete",
            ),
        ),
    ),
    Signature(
        id="gloo_mesh",
        reason=Reason.RENDEZVOUS_FAILED,
        sentence="could not connect to the other ranks",
        hint="Name the network interface that all nodes share with `--env GLOO_SOCKET_IFNAME=eth0`, and see that firewalls let "
        "nodes reach each other on all ports.",
        consequence=True,
        patterns=(
            Pattern(
                text=r"connectFullMesh failed|Gloo connect.* failed|Unable to find address for: |Unable to resolve hostname"
            ),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
            ),
        ),
    ),
    Signature(
        id="store_lost",
        reason=Reason.COMMUNICATION,
        sentence="lost the store through which the ranks meet",
        hint=_LOOK + " The store lives in rank 0, and goes with it.",
        consequence=True,
        patterns=(
            Pattern(
                error=r"Dist(Network|Store)Error$|^RuntimeError$",
                text=r"failed to recv, got 0 bytes|Connection was likely closed|Broken pipe.*store|TCPStore.*(?:closed|reset|Broken pipe)",
            ),
        ),
        examples=(
            Evidence(
                error_type="torch.distributed.DistNetworkError",
                message="failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
            ),
        ),
    ),
    Signature(
        id="infiniband",
        reason=Reason.COMMUNICATION,
        sentence="met an error of the fast network",
        hint="Test the adapters of the two nodes (`ibstat`, `fi_info -p efa`); `--env NCCL_DEBUG=INFO` says which one, and "
        "`--env NCCL_IB_DISABLE=1` shows whether it works without.",
        consequence=True,
        patterns=(
            Pattern(
                text=r"NET/IB ?: ?(?:Got completion|Got async event|Unable).*|ibv_\w{1,64} failed|NET/OFI.*(?:failed|error)|"
                r"(?i:libfabric|\bEFA\b).*(?:error|failed)"
            ),
        ),
        examples=(
            Evidence(
                error_type="std::runtime_error",
                message="NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\nncclRemoteError: A "
                "call failed.\nLast error:\nNET/IB : Got completion from peer 11.2.14.12<39138> with error 12, opcode 0",
                signal=6,
            ),
        ),
    ),
    Signature(
        id="nccl_remote",
        reason=Reason.COMMUNICATION,
        sentence="lost the connection to another rank",
        hint=_LOOK + " If none failed, the network between the nodes broke.",
        consequence=True,
        patterns=(Pattern(text=r"remote process exited|ncclRemoteError|NCCL communicator was aborted"),),
        examples=(
            Evidence(
                error_type="torch.distributed.DistBackendError",
                message="NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5",
            ),
        ),
    ),
    Signature(
        id="nccl_usage",
        reason=Reason.USER_ERROR,
        sentence="used NCCL in a way that it refuses",
        hint="See that each rank uses another device (`torch.cuda.set_device(LOCAL_RANK)` before the first collective), and that all "
        "ranks pass tensors of one size and type.",
        patterns=(Pattern(text=r"ncclInvalidUsage|ncclInvalidArgument|NCCL error.*invalid (?:usage|argument)"),),
        examples=(
            Evidence(
                error_type="torch.distributed.DistBackendError",
                message="NCCL error in: ProcessGroupNCCL.cpp:1970, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            ),
        ),
    ),
    Signature(
        id="nccl_system",
        reason=Reason.COMMUNICATION,
        sentence="could not talk to the other ranks through NCCL",
        hint="Rerun with `--env NCCL_DEBUG=INFO`: the last NCCL WARN names the call. Usual causes: the wrong interface "
        "(NCCL_SOCKET_IFNAME), a full /dev/shm, a low limit of locked memory or open files.",
        consequence=True,
        patterns=(
            Pattern(
                text=r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|unhandled (?:system|cuda) error|NCCL WARN"
            ),
            Pattern(error=r"DistBackendError$", log=r"NCCL WARN"),
            Pattern(error=r"DistBackendError$", text="NCCL error"),
        ),
        examples=(
            Evidence(
                error_type="torch.distributed.DistBackendError",
                message="NCCL error in: ProcessGroupNCCL.cpp:2501, unhandled system error (run with NCCL_DEBUG=INFO for details), "
                "NCCL version 2.25.1\nncclSystemError: System call (e.g. socket, malloc) or external library call failed",
            ),
            Evidence(
                error_type="torch.distributed.DistBackendError",
                message="NCCL error in: NCCLUtils.hpp:219, internal error, NCCL version 2.20.5\nncclInternalError: Internal check "
                "failed.",
            ),
        ),
    ),
    Signature(
        id="port_taken",
        reason=Reason.USER_ERROR,
        sentence="wanted a port that is taken",
        hint="Meet on MASTER_ADDR and MASTER_PORT as they are in the environment: that port is chosen anew for each attempt. For "
        "ports of your own, bind port 0 and let the system choose.",
        patterns=(Pattern(text=r"(?i)address already in use|EADDRINUSE"),),
        examples=(
            Evidence(
                error_type="torch.distributed.DistNetworkError",
                message="The server socket has failed to listen on any local network address. port: 29500, code: -98, name: "
                "EADDRINUSE, message: address already in use",
            ),
        ),
    ),
    Signature(
        id="name_unknown",
        reason=Reason.COMMUNICATION,
        sentence="could not look up the name of a host",
        hint="Test the name on that node (`getent hosts NAME`); nodes without DNS need an address that the others reach "
        "(GANGLINE_ADDRESS), and a proxy or a local copy for downloads.",
        patterns=(
            Pattern(
                text=r"Name or service not known|Temporary failure in name resolution|nodename nor servname|"
                r"No address associated with hostname|Could not resolve host|NameResolutionError|getaddrinfo failed"
            ),
        ),
        examples=(
            Evidence(error_type="socket.gaierror", message="[Errno -2] Name or service not known"),
            Evidence(
                error_type="requests.exceptions.ConnectionError",
                message="HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by "
                'NameResolutionError("Failed to resolve"))',
            ),
        ),
    ),
    Signature(
        id="rendezvous_timeout",
        reason=Reason.RENDEZVOUS_FAILED,
        sentence="could not join the others",
        detail="{joined} had come",
        hint="See in the logs of the ranks that did not come what they did meanwhile (downloading, importing, a wrong world size), "
        "and that all nodes reach MASTER_ADDR on MASTER_PORT.",
        consequence=True,
        patterns=(
            Pattern(text=r"Timed out after \d+ seconds waiting for (?:clients|workers)(?:\. (?P<joined>\d+/\d+))?"),
            Pattern(error=r"(^|\.)(DistNetworkError|DistStoreError|Rendezvous\w*Error)$"),
            Pattern(
                error=r"^RuntimeError$",
                text=r"Socket Timeout|wait timeout after \d+ ?ms|The client socket has (?:timed out|failed to connect)",
            ),
        ),
        examples=(
            Evidence(
                error_type="torch.distributed.DistStoreError",
                message="Timed out after 901 seconds waiting for clients. 1/3 clients joined.",
            ),
            Evidence(
                error_type="torch.distributed.DistStoreError",
                message="wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
            ),
            Evidence(
                error_type="torch.distributed.DistNetworkError",
                message="The client socket has timed out after 600000ms while trying to connect to (node-7, 29500).",
            ),
        ),
    ),
    Signature(
        id="xla_peer",
        reason=Reason.COMMUNICATION,
        sentence="lost the other processes of its cluster",
        hint=_LOOK,
        consequence=True,
        patterns=(
            Pattern(
                error=r"XlaRuntimeError|JaxRuntimeError|errors_impl\.\w+Error|^$",
                text=r"(?:UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): .*|[Cc]oordination service|task .* (?:unhealthy|heartbeat)",
            ),
            Pattern(error=r"(^|\.)UnavailableError$"),
        ),
        examples=(
            Evidence(
                error_type="jaxlib.xla_extension.XlaRuntimeError",
                message="UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:1",
            ),
        ),
    ),
    Signature(
        id="peer_lost",
        reason=Reason.COMMUNICATION,
        sentence="lost the connection to another rank",
        hint=_LOOK + " If none failed, the network between the nodes broke, or a rank left the others alone.",
        consequence=True,
        patterns=(
            Pattern(
                error=_PEERS,
                text=r"(?i)connection (?:was )?(?:closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe",
            ),
        ),
        examples=(
            Evidence(
                error_type="RuntimeError",
                message="[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41512",
            ),
        ),
    ),
    Signature(
        id="service_lost",
        reason=Reason.COMMUNICATION,
        sentence="lost the connection to a service that its code uses",
        hint=f"{_AGAIN} The other ranks had no part in it.",
        patterns=(
            Pattern(error=_CLIENTS, text=_NO_ANSWER),
            Pattern(
                error=f"{_OWN}|^(TimeoutError|ssl\\.SSL\\w*Error)$",
                trace=r"[/\\](?:http[/\\]client|ssl|urllib[/\\]request|ftplib|smtplib)\.py|"
                r"site-packages[/\\](?:urllib3|requests|httpcore|httpx|aiohttp|botocore|redis|pymongo|pymysql|psycopg2?|websockets?)[/\\]",
            ),
        ),
        examples=(
            Evidence(
                error_type="requests.exceptions.ConnectionError",
                message="('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
            ),
            Evidence(error_type="urllib.error.URLError", message="<urlopen error [Errno 111] Connection refused>"),
            Evidence(
                error_type="ConnectionResetError",
                message="[Errno 104] Connection reset by peer",
                trace='  File "/usr/lib/python3.11/http/client.py", line 279, in _read_status\n',
            ),
        ),
    ),
    Signature(
        id="connection_lost",
        reason=Reason.COMMUNICATION,
        sentence="lost a connection of its own code",
        hint=f"{_AGAIN} It is no connection of torch.distributed: those end in other words.",
        consequence=True,
        patterns=(Pattern(error=_OWN),),
        examples=(Evidence(error_type="ConnectionResetError", message="[Errno 104] Connection reset by peer"),),
    ),
)
