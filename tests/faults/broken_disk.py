"""A disk that answers every fsync of this process with an error, as Linux does when it breaks."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_SYNCS = {"x86_64": (74, 75), "aarch64": (82, 83)}  # fsync, fdatasync
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _ANSWER = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))


def break_disk() -> None:
    """For this process from now on, and for good: a filter before its system calls."""
    fsync, fdatasync = _SYNCS[platform.machine()]
    lines = b"".join(
        struct.pack("<HBBI", *line)
        for line in (
            (_LOAD, 0, 0, 0),  # the number of the call
            (_IF_EQUAL, 2, 0, fsync),
            (_IF_EQUAL, 1, 0, fdatasync),
            (_ANSWER, 0, 0, _ALLOW),
            (_ANSWER, 0, 0, _FAIL | errno.EIO),
        )
    )
    buffer = ctypes.create_string_buffer(lines)
    program = _Program(len(lines) // 8, ctypes.addressof(buffer))
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or system.prctl(
        _SECCOMP, _FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "this system has no filters of system calls")
