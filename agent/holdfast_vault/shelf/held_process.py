"""The process whose memory is copied, held from the start of its connection.

A connection outlives its process where a child has it too. The number of the process may then stand for another one, of
another user, whose memory the vault may read as well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.node.kernel import peer_pidfd
from holdfast.node.vault.seals import Bytes
from holdfast.node.vault.vault_socket import peer_pid

_VECTORS_MAX = 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class SourceLost(RuntimeError):
    """The process whose memory is copied is gone, or gave the memory back: the copy is worth nothing."""


class Piece(NamedTuple):
    """`nbytes` at `address` of the source belong at `offset` of the target."""

    address: int
    nbytes: int
    offset: int


class HeldProcess:
    """A process. While this is kept, no other process is taken for it."""

    def __init__(self, pid: int, descriptor: int) -> None:
        """`descriptor`: of the process (`pidfd_open(2)`); it is closed with this."""
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def at(cls, link: socket.socket) -> HeldProcess:
        """Return the process at the other end of a connection. Raises ProcessLookupError: it has ended."""
        pid = peer_pid(link)
        return cls(pid, peer_pidfd(link, pid))

    def __str__(self) -> str:
        return f"process {self.pid}"

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, pieces: Sequence[Piece], target: Bytes) -> None:
        """Copy pieces of its memory. Raises SourceLost: the process or some of the memory is gone."""
        base = target.ctypes.data
        self._require()
        for first in range(0, len(pieces), _VECTORS_MAX):
            some = pieces[first : first + _VECTORS_MAX]
            here = (_Vector * len(some))(*[_Vector(base + piece.offset, piece.nbytes) for piece in some])
            there = (_Vector * len(some))(*[_Vector(piece.address, piece.nbytes) for piece in some])
            done = _libc.process_vm_readv(self.pid, here, len(some), there, len(some), 0)
            if done != sum(piece.nbytes for piece in some):
                cause = os.strerror(ctypes.get_errno()) if done < 0 else "a part of it is gone"
                raise SourceLost(f"memory of {self} cannot be read: {cause}")
        try:
            self._require()
        except SourceLost:
            # It may be another process's.
            target[:] = 0
            raise

    def _require(self) -> None:
        """Raise SourceLost if it is gone, so that its number may be another process's."""
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except ProcessLookupError as error:
            raise SourceLost(f"{self} has ended") from error
        except PermissionError:
            return
