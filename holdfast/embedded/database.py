"""The database of an embedded cluster: from no files at all to a server that is up to date."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.embedded.layout import ClusterLayout, Ports
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.servers import credentials as passwords
from holdfast.embedded.servers import database_image
from holdfast.embedded.servers.access import Access
from holdfast.embedded.servers.database_image import Image, Images
from holdfast.embedded.servers.identity import Identity, choose_identity
from holdfast.embedded.servers.postgres import (
    ensure_database,
    initialise,
    postgres_spec,
    programs,
)
from holdfast.fresh_secrets import new_password
from holdfast.store.passwords import set_passwords

Migrate = Callable[[str, dict[str, str]], None]


class Database:
    """`migrate` as in `ClusterPlan`; `made_by` names what it makes, "" if no image of that is to be kept."""

    def __init__(
        self, layout: ClusterLayout, access: Access, ports: Ports, migrate: Migrate, made_by: str, *, durable: bool
    ) -> None:
        self._layout = layout
        self._directory = layout.postgres
        self._access = access
        self._ports = ports
        self._migrate = migrate
        self._made_by = made_by
        self._durable = durable
        self._identity = Identity.AS_IS

    def spec(self) -> ChildSpec:
        """Return the server as a child, by the present passwords; call it after `start` has begun."""
        known = self._access.credentials
        return postgres_spec(
            self._directory,
            port=self._ports.postgres,
            password=known.postgres,
            identity=self._identity,
            durable=self._durable,
            password_before=known.postgres_before,
        )

    async def start(self, bring_up: Callable[[ChildSpec], Awaitable[Child]]) -> None:
        """Start the server, with its files and tables if there are none. Raises EmbeddedError."""
        self._identity = choose_identity(programs() / "postgres", self._directory)
        images = None if (self._directory / "data").exists() else self._images()
        image = None if images is None else await asyncio.to_thread(images.find)
        is_copy = image is not None and await self._take(image)
        if not is_copy:
            await self._initialise(None if images is None else new_password())
        server = await bring_up(self.spec())
        if images is not None and not is_copy:
            await self._make_image(images, server)
        await self._access.settle_admin()
        admin, roles = self._access.database_urls["admin"], self._access.credentials.roles
        if images is not None:
            await set_passwords(admin, roles)
            return
        await ensure_database(self._ports.postgres, self._access.credentials.postgres)
        await asyncio.to_thread(self._migrate, admin, roles)

    def _images(self) -> Images | None:
        folder = database_image.image_folder(os.environ)
        return Images(folder, self._made_by, programs() / "postgres") if self._made_by and folder else None

    async def _take(self, image: Image) -> bool:
        """Make the files from an image; return False if that has a part missing."""
        draft = self._directory / "data.new"

        def copied() -> bool:
            shutil.rmtree(draft, ignore_errors=True)
            if not image.copy_to(draft):
                return False
            if self._durable:
                database_image.sync(self._directory)
            return True

        if not await asyncio.to_thread(copied):
            return False
        # Before the files are in place: any process that finds them knows the password.
        self._access.opens_with(image.password)
        draft.rename(self._directory / "data")
        return True

    async def _initialise(self, password: str | None) -> None:
        """Make the files by initdb, unless they exist. `password` is that of an image to be made."""
        if password is not None:
            self._access.opens_with(password)
        await initialise(
            self._directory,
            password=password or self._access.credentials.postgres,
            identity=self._identity,
            log=self._layout.log("postgres"),
            durable=self._durable,
        )

    async def _make_image(self, images: Images, server: Child) -> None:
        """Make the tables, and keep a copy of the files while the server is stopped."""
        password = self._access.credentials.postgres_before
        opened = msgspec.structs.replace(self._access.credentials, postgres=password)
        await ensure_database(self._ports.postgres, password)
        await asyncio.to_thread(self._migrate, passwords.database_urls(opened, self._ports)["admin"], {})
        await server.stop()
        await asyncio.to_thread(images.save, self._directory / "data", password)
        server.switch_on()
        await server.until_ready()
