"""A network namespace of its own for a gang on one host, where TensorFlow's servers listen.

TensorFlow's gRPC servers listen on all interfaces and serve any client, and no setting changes
that. Inside the namespace there is only a loopback interface, which no other process of the host
reaches. The namespace belongs to the processes in it and ends with the last of them. Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h
_libc = ctypes.CDLL(None, use_errno=True)

OPEN_PORTS = "TensorFlow's servers of the gang listen on all interfaces and ask for no credentials"
CLOSE_PORTS = (
    "Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, or the container's seccomp profile) and keep "
    "the storage root in a folder"
)


def enter_network_namespace() -> None:
    """Moves this process, and all that it starts from now on, into a new network namespace.

    Needs no privileges where the kernel lets users make namespaces. Must be called before there is
    a second thread. Raises OSError if the kernel refuses. The process may then have no network.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def find_isolation_problem(bucket: str = "") -> str:
    """The reason why a gang here can have no namespace, empty for none. A child process tries it.

    `bucket` is what the gang must reach outside.
    """
    if bucket:
        return f"{bucket} cannot be reached from a network namespace"
    if (child := os.fork()) == 0:
        code = 1
        try:
            enter_network_namespace()
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"the kernel refuses a network namespace ({os.strerror(abs(code))})" if code else ""


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
