"""System calls that the kernel refuses to a process, for tests of file systems that lack them.

A seccomp filter answers some calls with an error number, as a file system without them does. It
needs no privilege, counts for the process that asks for it and all that it starts, and stays.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Mapping

_NUMBERS = {
    "x86_64": {
        "link": (86, 265),
        "renameat2": (316,),
        "flock": (73,),
    },
    "aarch64": {
        "link": (37,),
        "renameat2": (276,),
        "flock": (32,),
    },
}[platform.machine()]
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def fail_syscalls(calls: Mapping[str, int]) -> None:
    """Lets the kernel answer system calls, by name, with an error number from now on."""
    program = struct.pack("HBBI", _LOAD_NUMBER, 0, 0, 0)
    for name, error in calls.items():
        for number in _NUMBERS[name]:
            program += struct.pack("HBBI", _JUMP_IF_EQUAL, 0, 1, number)
            program += struct.pack("HBBI", _RETURN, 0, 0, _ERROR | error)
    program += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    filled = _Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filled), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
