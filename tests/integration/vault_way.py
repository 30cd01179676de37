"""The way between two vaults, on which things happen."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from holdfast.orders.backup import VaultAddress


class Way:
    """Passes on what goes to a vault and what comes back: `nbytes` there, of which the one at `flip_at` is changed, and
    `nbytes_back`, of which there are `stop_back_at` at most, and those from `hold_back_at` on come with `go_on`.
    `record` gets what goes in either direction.
    """

    def __init__(
        self,
        to: VaultAddress,
        *,
        flip_at: int = -1,
        stop_back_at: int | None = None,
        hold_back_at: int | None = None,
        record: bytearray | None = None,
    ) -> None:
        self._to = to
        self._flip_at = flip_at
        self._stop_back_at = stop_back_at
        self._hold_back_at = hold_back_at
        self._record = record
        self._goes_on = threading.Event()
        self.nbytes = 0
        self.nbytes_back = 0
        self._links: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> VaultAddress:
        """Where it begins."""
        return VaultAddress(node=self._to.node, host="127.0.0.1", port=self._listening.getsockname()[1])

    def cut(self) -> None:
        """Break the connections that there are; new ones can be made."""
        links, self._links = self._links, []
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def go_on(self) -> None:
        """Pass on what is held back."""
        self._goes_on.set()

    def close(self) -> None:
        """No way any more."""
        self._goes_on.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection((self._to.host, self._to.port))
                except ConnectionRefusedError:
                    near.close()
                    continue
                self._links += near, far
                threading.Thread(target=self._pass_on, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_there: bool) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if self._record is not None:
                    self._record += data
                if is_there:
                    place = self._flip_at - self.nbytes
                    if 0 <= place < len(data):
                        data[place] ^= 4
                    self.nbytes += len(data)
                else:
                    self.nbytes_back += len(data)
                    if self._stop_back_at is not None and self.nbytes_back >= self._stop_back_at:
                        continue
                    if self._hold_back_at is not None and self.nbytes_back >= self._hold_back_at:
                        self._goes_on.wait()
                target.sendall(data)
        for link in (source, target):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
