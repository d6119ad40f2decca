"""Ray: on this machine alone, or on a cluster at an address.

Ray trusts everybody who can reach it: whoever can connect may run any program. Started here, it
listens to this machine alone.
"""

import contextlib
import os
import socket
import warnings
from typing import Any

AUTO = "auto"
"""A cluster that this machine belongs to, or, without one, this machine alone."""
KNOCK_SECONDS = 10.0


def connect(cluster: str) -> Any:
    """The module ``ray``, connected.

    Args:
      cluster: its address, ``AUTO``, or nothing for this machine alone.

    Raises:
      ValueError: Ray is not installed, or there is no cluster at the address.
    """
    if not cluster:
        # Read when Ray is imported. Without clusters, which is the default of other systems than
        # Linux, Ray listens on 127.0.0.1 alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(
            "several machines or actors need Ray: pip install 'spectral_bellman[ray]'"
        ) from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    with warnings.catch_warnings():
        # JAX warns of os.fork. What Ray forks becomes another program at once.
        warnings.simplefilter("ignore")
        if not cluster:
            ray.init(include_dashboard=False, **quiet)
            return ray
        try:
            _knock(cluster)
            ray.init(address=cluster, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            if cluster == AUTO:
                return connect("")
            raise ValueError(
                f"no Ray cluster at --cluster {cluster!r} ({error}): start one with ray start "
                "--head, or take --cluster auto, which without one uses this machine"
            ) from error
    return ray


def _knock(cluster: str) -> None:
    """Raise OSError if nobody listens at an address, which takes Ray minutes to find out."""
    host, _, port = cluster.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        with contextlib.closing(socket.create_connection((host, int(port)), KNOCK_SECONDS)):
            pass
