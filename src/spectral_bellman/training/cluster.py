"""Ray: on this machine alone, or on a cluster at an address.

Ray trusts everybody who can reach it: whoever can connect may run any program. Started here, it
listens to this machine alone.
"""

import contextlib
import os
import socket
import warnings
from pathlib import Path
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
    if cluster == AUTO:
        cluster = os.environ.get("RAY_ADDRESS", "") or started_here()
        with contextlib.suppress(ValueError):
            return connect(cluster)
        return connect("")  # the cluster that was started here has ended
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
            # Ray's "auto" would join whatever Ray runs here, of somebody else's program perhaps.
            ray.init(address="local", include_dashboard=False, **quiet)
            return ray
        try:
            _knock(cluster)
            ray.init(address=cluster, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"no Ray cluster at --cluster {cluster!r} ({error}): start one with ray start "
                "--head, or take --cluster auto, which without one uses this machine"
            ) from error
    return ray


def started_here() -> str:
    """The address of the cluster that ``ray start`` has brought this machine into last, if any."""
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""


def _knock(cluster: str) -> None:
    """Raise OSError if nobody listens at an address, which takes Ray minutes to find out."""
    host, _, port = cluster.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        with contextlib.closing(socket.create_connection((host, int(port)), KNOCK_SECONDS)):
            pass
