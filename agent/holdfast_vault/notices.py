"""Notices for the agents that follow. Each follower has its own queue, and none of them delays the vault.

Notices of damage that no follower took wait for the next one: an agent may be away for a while.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from holdfast.node.frames import WireError, send
from holdfast.node.vault.messages import DamageNotice, Notice

WAITING_MAX = 1024


class NoticeQueue:
    """Notices that wait for one follower. If there are too many, the oldest is dropped, but never one of damage:
    it is rare, and waits once for each sealed step.
    """

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._passing: deque[tuple[int, Notice]] = deque()
        self._damage: dict[object, tuple[int, DamageNotice]] = {}
        self._count = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, notice: Notice) -> None:
        with self._changed:
            self._count += 1
            if isinstance(notice, DamageNotice):
                self._damage.setdefault((notice.name, notice.sealed, notice.node), (self._count, notice))
            else:
                self._passing.append((self._count, notice))
                if len(self._passing) > self._waiting_max:
                    self._passing.popleft()
            self._changed.notify_all()

    def take(self) -> Notice | None:
        """Return the oldest, as soon as there is one; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._passing or self._damage)
            if self._is_closed:
                return None
            if self._damage:
                what, (number, damage) = next(iter(self._damage.items()))
                if not self._passing or number < self._passing[0][0]:
                    del self._damage[what]
                    return damage
            return self._passing.popleft()[1]

    def take_damage(self) -> list[DamageNotice]:
        with self._changed:
            left = [notice for _, notice in self._damage.values()]
            self._damage.clear()
            return left

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class Notices:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: set[NoticeQueue] = set()
        # Without a follower only damage waits.
        self._unclaimed = NoticeQueue(waiting_max=0)

    def publish(self, notice: Notice) -> None:
        with self._lock:
            self._put(notice)

    def send_to(self, link: socket.socket) -> None:
        """Send notices over this connection until it ends; a follower sends nothing more."""
        mailbox = NoticeQueue()
        with self._lock:
            self._mailboxes.add(mailbox)
            for damage in self._unclaimed.take_damage():
                mailbox.put(damage)
        sending = threading.Thread(target=_send_all, args=(mailbox, link), daemon=True)
        sending.start()
        try:
            with contextlib.suppress(OSError):
                link.recv(1)
        finally:
            with self._lock:
                self._mailboxes.discard(mailbox)
            mailbox.close()
            # It may be in the middle of a message to a follower that does not read.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            sending.join()
            with self._lock:
                for damage in mailbox.take_damage():
                    self._put(damage)

    def _put(self, notice: Notice) -> None:
        for mailbox in self._mailboxes or (self._unclaimed,):
            mailbox.put(notice)


def _send_all(mailbox: NoticeQueue, link: socket.socket) -> None:
    while (notice := mailbox.take()) is not None:
        try:
            send(link, notice)
        except WireError:
            mailbox.put(notice)
            return
