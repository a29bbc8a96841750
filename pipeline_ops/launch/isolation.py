"""A network namespace of its own for a gang on one host, where TensorFlow's servers must listen.

TensorFlow's gRPC servers listen on all interfaces and serve any client. Inside the namespace there
is only a loopback interface, which no other process of the host reaches. The namespace belongs to
the processes in it and ends with the last of them. Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from pipeline_ops.errors import ConfigError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h
_libc = ctypes.CDLL(None, use_errno=True)


def enter_network_namespace() -> None:
    """Moves this process, and all that it starts from now on, into a new network namespace.

    Needs no privileges where the kernel lets users make namespaces. Must be called before there is
    a second thread.

    Raises:
      ConfigError: The kernel refuses.
    """
    user, group = os.getuid(), os.getgid()
    try:
        try:
            _unshare(_CLONE_NEWNET)
        except PermissionError:
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _start_loopback()
    except OSError as error:
        raise ConfigError(
            f"the kernel refuses the gang a network namespace ({error.strerror}), "
            "and without one TensorFlow's servers would be open to everyone who reaches this host. "
            "Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0, or the container's seccomp profile), "
            "or write `network: trusted` into a hosts file that train.hosts names, "
            "if only trusted people reach this host's ports"
        ) from error


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _start_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
