"""The ledgers of this node's ranks, read to know if a rank is in a collective."""

from __future__ import annotations

import threading

import structlog

from holdfast.node.ledger.ledger_layout import LedgerError
from holdfast.node.ledger.ledger_reader import LedgerReader
from holdfast.node.vault.messages import ShardName

log = structlog.get_logger(__name__)


class RankLedgers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[ShardName, LedgerReader] = {}
        self._paths: dict[ShardName, str] = {}

    def watch(self, name: ShardName, path: str) -> LedgerReader | None:
        """Read this ledger for a rank until `leave`; "": the rank has none."""
        with self._lock:
            self._drop(name)
            if not path:
                return None
            self._paths[name] = path
            try:
                self._readers[name] = LedgerReader(path)
            except (OSError, LedgerError) as error:
                log.warning("copies do not stand back for this rank", of=str(name), reason=str(error))
            return self._readers.get(name)

    def leave(self, name: ShardName, reader: LedgerReader | None) -> None:
        """Stop reading a rank that has ended, with the collective that it was in: its successor's ledger is another."""
        with self._lock:
            if reader is not None and self._readers.get(name) is reader:
                self._drop(name)

    def path(self, name: ShardName) -> str:
        """Return the path of a rank's ledger; "" if it has none."""
        return self._paths.get(name, "")

    def are_in_collective(self) -> bool:
        with self._lock:
            for name, reader in list(self._readers.items()):
                try:
                    if reader.snapshot().collective.in_flight:
                        return True
                except (OSError, LedgerError) as error:
                    log.warning("copies no longer yield to this rank", of=str(name), reason=str(error))
                    self._drop(name)
            return False

    def clear(self) -> None:
        """Stop reading all ledgers: the node serves another job."""
        with self._lock:
            for name in list(self._readers):
                self._drop(name)

    def _drop(self, name: ShardName) -> None:
        self._paths.pop(name, None)
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.close()
