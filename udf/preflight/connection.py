"""Connects this process to a Ray cluster, and says within seconds if nothing answers there."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

import daft

from daft_vllm.errors import DeviceError, MissingPackageError, OptionError
from daft_vllm.giving_up import within
from daft_vllm.wording import safe_line, shown

REACH_SECONDS = 5.0
"""How long a port may take to answer. Ray 2.59 itself tries for two minutes where nobody listens."""
JOIN_SECONDS = 15.0
"""How long Ray may take to join a cluster whose port answers: it takes a second or two, or never if no Ray is there."""
CLIENT_SECONDS = 60.0
"""The same for ``ray://``, where the cluster first starts a process for the client. Ray's own limit is 30 seconds."""
_CLIENT_PORT = 10001


def on_ray() -> bool:
    """Whether Daft runs its queries on Ray."""
    return daft.get_or_infer_runner_type() == "ray"


def join_cluster() -> None:
    """Connect to the cluster on which Daft runs its queries, as Daft's first query would, unless Ray is connected.

    Daft connects when a table is made from values or read from Parquet, and for other tables when the first query runs.

    Raises:
        DeviceError: nothing answers at ``RAY_ADDRESS``.
        MissingPackageError: Ray isn't installed.
        OptionError: ``RAY_ADDRESS`` is no address.
    """
    import_ray()
    import ray

    if ray.is_initialized():
        return
    check_reachable(os.environ.get("RAY_ADDRESS", ""))
    daft.runners.get_or_create_runner()


def connect(address: str) -> None:
    """Connect to a cluster, and let Daft run its queries there.

    Args:
        address: ``"auto"`` for the cluster of this machine, ``"host:port"``, ``"ray://host:port"``, or ``"local"``,
            which starts a Ray on this machine that ends with this process.

    Raises:
        DeviceError: no Ray answers there, within ``REACH_SECONDS`` and ``JOIN_SECONDS``.
        MissingPackageError: Ray isn't installed.
        OptionError: it is no address.
    """
    import_ray()
    import ray

    if not ray.is_initialized():
        check_reachable(address)

        def join() -> None:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)

        try:
            if address == "local":
                join()
            else:
                seconds = CLIENT_SECONDS if address.startswith("ray://") else JOIN_SECONDS
                within(seconds, join, lambda: _nobody(address, f"it is no Ray, which would join within {seconds:g} s"))
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise _nobody(address, safe_line(str(e))) from None
    daft.set_runner_ray()


def import_ray() -> None:
    """Raise ``MissingPackageError`` if Ray isn't installed."""
    try:
        import ray  # noqa: F401
    except ImportError as e:
        raise MissingPackageError("Ray is not installed here: pip install 'daft-vllm[ray]'.") from e


def check_reachable(address: str) -> None:
    """Raise an error if nothing listens at an address of a cluster. Words such as ``"auto"`` pass.

    Raises:
        DeviceError: nothing answers within ``REACH_SECONDS``.
        OptionError: it is no address.
    """
    if address in ("", "auto", "local"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port or (_CLIENT_PORT if parts.scheme == "ray" else None)
    except ValueError:
        host = port = None
        parts = urlsplit("//")
    if host is None or port is None or parts.scheme not in ("", "ray"):
        raise OptionError(
            f"{shown(address)} is no address of a Ray cluster: write auto, host:6379 or ray://host:10001 (the port of "
            "ray start --head, or that of the Ray Client; not the dashboard's), or local."
        )
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as e:
        raise _nobody(address, e.strerror or str(e) or type(e).__name__) from None


def _nobody(address: str, why: str) -> DeviceError:
    if address == "auto":
        return DeviceError(
            "no Ray runs on this machine, which auto stands for: start one (ray start --head), or name the cluster's "
            "address, host:6379."
        )
    return DeviceError(
        f"no Ray cluster answers at {shown(address)} ({why.rstrip('.')}): look whether ray status says that it runs, "
        "and whether its port can be reached from here."
    )
