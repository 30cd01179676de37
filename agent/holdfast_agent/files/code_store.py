"""Versions of jobs' code on this node: fetched over the bus, verified, unpacked, and deleted when outdated.

A version that an order names is fetched before the present ranks are stopped. Versions that a job may need next are
fetched ahead, also on standby nodes. Contents are stored by hash, so that only new contents are fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from holdfast.bounded_calls import within
from holdfast.bus import Bus, BusError
from holdfast.code.in_place import SourceTree, from_tree
from holdfast.code.manifest import InvalidManifest, Manifest, decode, digest_of
from holdfast.code.unpack import WrongContent, damage, unpack
from holdfast.fresh_ids import uuid7
from holdfast.node.reach import closed_to_others
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast_agent.files.code_fetch import CodeUnavailable, fetch_contents, fetch_manifest, without

VERSIONS_KEPT = 4
"""Versions kept of each job besides those that it may need next, so that a rollback needs no fetch."""
TREE_WITHIN_S = 2.0
"""A source tree on a file system that hangs must not hold the fetch."""
AHEAD_AFTER_S = 1.0
_RETRY_S = 0.3
_CONTENTS = ".contents"
"""No job's name begins with a dot."""

log = structlog.get_logger(__name__)


class CodeNeed(msgspec.Struct):
    """A version of a job's code to have in place. `give_up_at` is the deadline if an order waits for it."""

    job: str
    version: str
    root: str
    outside: tuple[str, ...]
    cause: str | None = None
    give_up_at: float | None = None
    ordered: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set once an order waits for it."""

    @property
    def key(self) -> str:
        """The name by which the agent's plan refers to it."""
        return code_key(self.job, self.version)


class FetchedCode(NamedTuple):
    """A version that was put in place, with its number of files, bytes fetched over the bus, and seconds."""

    need: CodeNeed
    files: int
    fetched_bytes: int
    took_s: float


def code_key(job: str, version: str) -> str:
    return f"{job}/{version}"


class CodeStore:
    """The code of a node below `root`. `on_change` gets all versions in place, `on_brought` each fetched one,
    `on_failure` a need that an order waits for. Callbacks run on the loop and must not wait.
    """

    def __init__(
        self,
        node: str,
        root: Path,
        give_up_s: float,
        on_change: Callable[[frozenset[str]], None],
        on_brought: Callable[[FetchedCode], None],
        on_failure: Callable[[CodeNeed, str], None],
    ) -> None:
        self._node = node
        self._root = root
        self._give_up_s = give_up_s
        self._on_change = on_change
        self._on_brought = on_brought
        self._on_failure = on_failure
        self._needs: dict[str, CodeNeed] = {}
        """Versions whose fetch has not ended, by key."""
        self._new: asyncio.Queue[CodeNeed] = asyncio.Queue()
        self._in_place: set[str] = set()
        """Versions that ranks can run now: from a copy, or from the source tree while the copy is still written."""
        self._held: dict[str, dict[str, bytes]] = {}
        """Contents of versions that are being put in place, before they are all on the disk."""
        self._wanted: dict[str, tuple[str, ...]] = {}
        """Versions that the controller may order soon, by job."""
        self._ordered: list[str] = []
        """Versions of the newest order and of the one before, which ranks run until they are replaced."""
        for part in (root / _CONTENTS).glob("*.part"):
            # An agent that was killed while it wrote left it behind.
            part.unlink(missing_ok=True)
        self._last_manifest: tuple[str, Manifest] = ("", Manifest(entries=()))

    def place(self, job: str, version: str) -> Path:
        return self._root / job / version

    def manifest(self, version: str) -> Manifest:
        """Return the manifest of a version that is in place. Raises OSError or InvalidManifest. For all threads."""
        last = self._last_manifest
        if last[0] != version:
            last = self._last_manifest = version, decode(self._content(version))
        return last[1]

    def order(self, order: NodeOrder) -> None:
        """Fetch the code of an order that waits for it."""
        placement = order.placement
        if placement is None or placement.code_version is None:
            return
        self.in_use(order)
        spec = placement.job
        need = CodeNeed(spec.name, placement.code_version, spec.code_root, spec.code_outside, order.cause)
        need.give_up_at = time.monotonic() + self._give_up_s
        need.ordered.set()
        self._add(need)

    def in_use(self, order: NodeOrder | None) -> None:
        """Keep the code of this order, also when its job drops the version: ranks may run it."""
        placement = order.placement if order is not None else None
        if placement is not None and placement.code_version is not None:
            key = code_key(placement.job.name, placement.code_version)
            # Until they are replaced, the present ranks run the version before.
            self._ordered = [key, *(other for other in self._ordered if other != key)][:2]

    def forget(self, job: str) -> None:
        """Note that the directory of this job's code was removed."""
        gone = {key for key in self._in_place if key.startswith(code_key(job, ""))}
        if gone:
            self._in_place -= gone
            self._on_change(frozenset(self._in_place))

    async def run(self, bus: Bus, orders: AsyncIterator[CodeOrder]) -> None:
        """Fetch what node orders and `orders` name, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(orders), name="code wanted")
            while True:
                need = await self._new.get()
                group.create_task(self._get(bus, need), name=f"code {need.key}")

    async def _follow(self, orders: AsyncIterator[CodeOrder]) -> None:
        async for wanted in orders:
            await self._want(wanted)

    async def _want(self, wanted: CodeOrder) -> None:
        self._wanted[wanted.job] = tuple(code_key(wanted.job, version) for version in wanted.versions)
        for version in wanted.versions:
            self._add(CodeNeed(wanted.job, version, wanted.root, wanted.outside, wanted.cause))
        if not wanted.versions:
            del self._wanted[wanted.job]
            # An old order of this form may be brought back at any time: what ranks run stays all the same.
            await self._tidy(wanted.job, but=0)

    def _add(self, need: CodeNeed) -> None:
        under_way = self._needs.get(need.key)
        if under_way is not None:
            under_way.give_up_at = need.give_up_at or under_way.give_up_at
            if need.ordered.is_set():
                under_way.ordered.set()
        elif need.key not in self._in_place or need.give_up_at is not None:
            self._needs[need.key] = need
            self._new.put_nowait(need)

    async def _get(self, bus: Bus, need: CodeNeed) -> None:
        try:
            # A node that has an order goes first: all nodes share one bus, in small clusters even one machine.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AHEAD_AFTER_S):
                    await need.ordered.wait()
            while True:
                try:
                    brought = await self._bring(bus, need)
                    break
                except (BusError, CodeUnavailable, InvalidManifest, WrongContent, OSError) as error:
                    reason = str(error) or type(error).__name__
                if need.key in self._in_place:
                    # Ranks run it from the source tree; the next order brings it again.
                    log.error("code is not kept on this node", code=need.key, reason=reason)
                    self._in_place.discard(need.key)
                    self._on_change(frozenset(self._in_place))
                    return
                if need.give_up_at is None:
                    log.warning("code is not fetched ahead", code=need.key, reason=reason)
                    return
                if time.monotonic() >= need.give_up_at:
                    log.error("code cannot be fetched", code=need.key, reason=reason)
                    self._on_failure(need, reason)
                    return
                await asyncio.sleep(_RETRY_S)
            if brought.files:
                log.info("code is in place", code=need.key, fetched_bytes=brought.fetched_bytes)
                self._on_brought(brought)
            self._in_place.add(need.key)
            self._on_change(frozenset(self._in_place))
            await self._tidy(need.job, but=VERSIONS_KEPT)
        finally:
            del self._needs[need.key]

    async def _bring(self, bus: Bus, need: CodeNeed) -> FetchedCode:
        """Put a version in place. Raises CodeUnavailable, InvalidManifest, WrongContent, BusError, OSError."""
        began = time.monotonic()
        body, fetched = await self._manifest(bus, need)
        manifest = decode(body)
        if await asyncio.to_thread(self._is_whole, manifest, need):
            return FetchedCode(need, 0, 0, 0.0)
        lacking = {digest: size for digest, size in manifest.digests.items() if not self._content_path(digest).exists()}
        # As a rule they lie in the source tree: on one machine, or on a file system that all nodes share.
        found = await asyncio.to_thread(_from_tree, need, manifest, lacking)
        self._held[need.key] = found
        try:
            is_early = len(found) == len(lacking) and await self._announce_at_its_path(manifest, need)
            await asyncio.to_thread(self._keep, found)
            async for contents in fetch_contents(bus, self._node, need.version, without(lacking, found)):
                await asyncio.to_thread(self._keep, contents)
                fetched += sum(map(len, contents.values()))
            if not is_early:
                await self._announce_at_its_path(manifest, need)
            await asyncio.to_thread(self._unpack, manifest, need)
        finally:
            del self._held[need.key]
        return FetchedCode(need, len(manifest.entries), fetched, time.monotonic() - began)

    async def _announce_at_its_path(self, manifest: Manifest, need: CodeNeed) -> bool:
        """Announce a version that ranks can run from the source tree: they need no copy now, though they may at their
        next start, when somebody has edited the tree. Return False if it is not announced.
        """
        if not need.ordered.is_set() or not await asyncio.to_thread(self._lies_at_its_path, manifest, need):
            return False
        self._in_place.add(need.key)
        self._on_change(frozenset(self._in_place))
        return True

    def _lies_at_its_path(self, manifest: Manifest, need: CodeNeed) -> bool:
        """Return True if the source tree is at this version, and open to every user that ranks may have."""

        def look() -> bool:
            return closed_to_others(Path(need.root)) is None and SourceTree(need.root).differing(manifest) == ()

        try:
            return bool(need.root) and within(look, TREE_WITHIN_S)
        except (OSError, TimeoutError):
            return False

    def _unpack(self, manifest: Manifest, need: CodeNeed) -> None:
        root, target = Path(need.root) if need.root else None, self.place(need.job, need.version)
        held = self._held.get(need.key, {})

        def content(digest: str) -> bytes:
            return held[digest] if digest in held else self._content(digest)

        try:
            unpack(manifest, content, target, outside=need.outside, outside_root=root)
        except WrongContent as error:
            self._content_path(error.digest).unlink(missing_ok=True)
            raise
        except OSError:
            # `complete` may have been faster.
            if not target.is_dir():
                raise

    def complete(self, job: str, version: str) -> Path:
        """Return the directory of a version in place, unpacked now if ranks were to run without it. Raises OSError,
        InvalidManifest or WrongContent.
        """
        target = self.place(job, version)
        if not target.is_dir() and (need := self._needs.get(code_key(job, version))) is not None:
            self._unpack(self.manifest(version), need)
        return target

    async def _manifest(self, bus: Bus, need: CodeNeed) -> tuple[bytes, int]:
        """Return the manifest and the number of bytes fetched for it."""
        version = need.version
        with contextlib.suppress(FileNotFoundError):
            body = self._content(version)
            if digest_of(body) == version:
                return body, 0
        body = await fetch_manifest(bus, self._node, version)
        self._keep({version: body})
        return body, len(body)

    def _is_whole(self, manifest: Manifest, need: CodeNeed) -> bool:
        """Return True if a version is complete on disk; remove it if it is damaged."""
        target = self.place(need.job, need.version)
        if not target.is_dir():
            return False
        if need.key in self._in_place:
            return True
        if any(damage(manifest, target)):
            log.warning("code on the disk is damaged and is unpacked again", code=need.key)
            shutil.rmtree(target)
            return False
        os.utime(target)
        return True

    def _content_path(self, digest: str) -> Path:
        return self._root / _CONTENTS / digest

    def _content(self, digest: str) -> bytes:
        """Return the content stored under a hash, unverified."""
        return self._content_path(digest).read_bytes()

    def _keep(self, contents: dict[str, bytes]) -> None:
        folder = self._root / _CONTENTS
        folder.mkdir(parents=True, exist_ok=True)
        for digest, body in contents.items():
            # Two versions that share files may be fetched at once.
            part = folder / f"{digest}.{uuid7()}.part"
            part.write_bytes(body)
            part.replace(folder / digest)

    async def _tidy(self, job: str, but: int) -> None:
        """Remove all but `but` versions of a job and those that may be needed, and contents that no version uses."""
        try:
            gone = self._set_aside(job, but)
        except OSError as error:
            # Ranks matter more than disk space; removal is tried again after the next fetch.
            log.warning("old versions of the code cannot be removed", job=job, error=str(error))
            return
        if gone:
            versions = {path.name for folder in _listed(self._root) for path in _listed(folder)}
            needed = versions | {need.version for need in self._needs.values()}
            await asyncio.to_thread(self._remove, gone, needed)

    def _set_aside(self, job: str, but: int) -> list[Path]:
        """Rename old versions at once, so that an order never finds a half-deleted one."""
        needed = {*self._wanted.get(job, ()), *self._ordered, *self._needs}
        folder = self._root / job
        lying = [path for path in _listed(folder) if code_key(job, path.name) not in needed]
        # An agent that was killed while it deleted left some behind.
        gone = list(folder.glob(".*.gone"))
        for path in sorted(lying, key=lambda path: -path.stat().st_mtime)[but:]:
            aside = folder / f".{path.name}.{uuid7()}.gone"
            path.rename(aside)
            gone.append(aside)
            self._in_place.discard(code_key(job, path.name))
        if gone:
            self._on_change(frozenset(self._in_place))
        return gone

    def _remove(self, gone: list[Path], versions: set[str]) -> None:
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        needed = set(versions)
        for version in versions:
            try:
                needed |= decode(self._content(version)).digests.keys()
            except (OSError, InvalidManifest):
                continue
        # A version that is needed again is fetched again.
        for path in _listed(self._root / _CONTENTS):
            if path.name not in needed:
                path.unlink(missing_ok=True)


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != ".part"]
    except FileNotFoundError:
        return []


def _from_tree(need: CodeNeed, manifest: Manifest, lacking: Collection[str]) -> dict[str, bytes]:
    try:
        return within(lambda: from_tree(need.root, manifest, lacking), TREE_WITHIN_S) if lacking and need.root else {}
    except TimeoutError:
        return {}
