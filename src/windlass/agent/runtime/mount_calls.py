"""Mounts by file descriptor: openat2, open_tree, move_mount, fsopen and mount_setattr.

A path that a job may change is resolved once, without following links; from then on only the
descriptor counts. Nothing goes through /proc, so a mount over /proc changes nothing either. Linux
has all calls since 5.12; `sandbox` does without where `available` says no. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from collections.abc import Mapping

# The numbers are the same on all architectures that Windlass runs on.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_OPENAT2, _MOUNT_SETATTR = 437, 442
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_CLONE, _TREE_CLOEXEC = 1, os.O_CLOEXEC
_EMPTY_PATH, _RECURSIVE = 0x1000, 0x8000
_MOVE_FROM_HANDLE, _MOVE_TO_HANDLE = 0x04, 0x40
_SET_STRING, _CREATE = 1, 6
_FS_CLOEXEC = 1
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
"""Attributes of a mount."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@functools.cache
def available() -> bool:
    """Whether this kernel has the calls and permits them to this process."""
    with contextlib.suppress(OSError):
        handle = open_below(os.open("/", os.O_PATH | os.O_CLOEXEC), "")
        try:
            tree = tree_of(handle)
        finally:
            os.close(handle)
        try:
            set_attributes(tree, NO_SUID)
        finally:
            os.close(tree)
        return True
    return False


def open_below(base: int, below: str) -> int:
    """A descriptor of a path below the folder `base`, which is closed. Fails if there is a symbolic
    link on the path, or if it leads out of the folder."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_SYMLINKS | _NO_MAGICLINKS | _BENEATH)
    path = below.strip("/") or "."
    try:
        return _call(path, _OPENAT2, base, os.fsencode(path), how, len(how))
    finally:
        os.close(base)


def tree_of(handle: int, *, recursive: bool = True) -> int:
    """A mount of what the descriptor refers to, and of the mounts below it, attached nowhere."""
    flags = _EMPTY_PATH | _CLONE | _TREE_CLOEXEC | (_RECURSIVE if recursive else 0)
    return _call("open_tree", _OPEN_TREE, handle, b"", flags)


def file_system(kind: str, options: Mapping[str, str], attributes: int) -> int:
    """A new file system, attached nowhere."""
    made = _call(kind, _FSOPEN, kind.encode(), _FS_CLOEXEC)
    try:
        for name, value in options.items():
            _call(kind, _FSCONFIG, made, _SET_STRING, name.encode(), value.encode(), 0)
        _call(kind, _FSCONFIG, made, _CREATE, None, None, 0)
        return _call(kind, _FSMOUNT, made, _FS_CLOEXEC, attributes)
    finally:
        os.close(made)


def set_attributes(tree: int, attributes: int) -> None:
    """Sets attributes on a mount and on all mounts below it."""
    what = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _EMPTY_PATH | _RECURSIVE
    _call("mount_setattr", _MOUNT_SETATTR, tree, b"", flags, what, len(what))


def attach(tree: int, target: int, path: str) -> None:
    """Puts a detached mount over what the descriptor `target` refers to. `path` is for errors."""
    flags = _MOVE_FROM_HANDLE | _MOVE_TO_HANDLE
    _call(path, _MOVE_MOUNT, tree, b"", target, b"", flags)


def _call(what: str, number: int, *arguments: object) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed), what)
    return result
