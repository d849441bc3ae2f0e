"""A separate store (`harness store`): its key, and a run's place in it.

Every launch of a run has its own place there, `URL/runs/LAUNCH`, with a store that no other run
sees, in that process's memory. The launch renews its place once a second. After a restart of the
store the place is created again, empty, and unknown rollouts are enqueued again. Other users of the
place wait meanwhile (`StoreClient`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import httpx
from pydantic import JsonValue

from harness.config import cache_dir
from harness.contracts.queue import RemoteQueue
from harness.errors import ConfigError, EnvironmentProblem, RunFailed
from harness.util.endpoints import Endpoint
from harness_agentlightning_queue.queue import LightningQueue, resources_of
from harness_agentlightning_queue.store import AWAY_S, StoreClient, gone

logger = logging.getLogger(__name__)

KEY, KEY_FILE = "HARNESS_STORE_KEY", "HARNESS_STORE_KEY_FILE"
ASK_S = 1.0


def key_place(file: Path | None = None) -> str:
    """Return where the key is: a variable or a file."""
    return KEY if file is None and KEY in os.environ else str(file or _key_file())


def _key_file() -> Path:
    return Path(os.environ.get(KEY_FILE) or cache_dir() / "store.key").expanduser()


def store_key(file: Path | None = None) -> str:
    """Return the key of stores; a missing file is created with a new key.

    Its source is `file`, else the variable `HARNESS_STORE_KEY`, else the file in
    `HARNESS_STORE_KEY_FILE`, else `store.key` in the cache.

    Raises:
        ConfigError: The file cannot be read or created, others may read it, or there is no key.
    """
    if file is None and KEY in os.environ:
        key = os.environ[KEY].strip()
    else:
        file = file or _key_file()
        try:
            with suppress(FileExistsError):
                if not file.exists():
                    _make(file)
            with file.open(encoding="utf-8") as opened:
                of = os.fstat(opened.fileno())
                key = opened.read().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the key of the store cannot be read from {file}: {error}"
            ) from error
        if of.st_uid != os.geteuid() or of.st_mode & 0o077:
            raise ConfigError(
                f"{file} holds the key of the store, and others may read it: chmod 600 {file}"
            )
    if not key.isascii() or not key.isprintable() or len(key) < 16:
        raise ConfigError(
            f"{key_place(file)} holds no key of a store: 16 or more letters and digits. Remove it"
        )
    return key


def _make(file: Path) -> None:
    """Write a new key atomically, readable by its owner only. Of several writers the first wins."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=file.parent, encoding="utf-8"
    ) as made:  # has mode 600
        made.write(secrets.token_urlsafe(32) + "\n")
        made.flush()
        os.link(made.name, file)


def runs_at(
    url: str, say: Callable[[str], None], limit_s: float = AWAY_S
) -> list[dict[str, JsonValue]]:
    """Return the invitations of a store's runs.

    Wait for a store that does not answer yet, with one message.

    Raises:
        ConfigError: It is no store of harness, or has another key.
        EnvironmentProblem: It did not answer within `limit_s`.
    """
    ends, reported = time.monotonic() + limit_s, False
    while True:
        try:
            answer = httpx.get(
                f"{url}/runs", headers=bearer(store_key()), timeout=5, trust_env=False
            )
            if answer.status_code == 401:
                raise ConfigError(
                    f"the store at {url} has another key than {key_place()}: "
                    f"copy its key, or set {KEY}"
                )
            return list(answer.raise_for_status().json()["runs"])
        except httpx.TransportError as error:
            if time.monotonic() > ends:
                raise EnvironmentProblem(
                    f"no store at {url} after {limit_s:g} s ({error}): "
                    "start `harness store`, or correct its URL"
                ) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{url} is no store that `harness store` started: {error}") from error
        if not reported:
            say(f"waiting for the store at {url}, for {limit_s:g} s at most")
        reported = True
        time.sleep(ASK_S)


def bearer(key: str) -> dict[str, str]:
    """Return the header with the key."""
    return {"Authorization": f"Bearer {key}"}


class StoreQueue(LightningQueue, RemoteQueue):
    """A run's place in a store at `url`."""

    def __init__(self, url: str, run: str) -> None:
        self._client = StoreClient(f"{url}/runs/{run}.{secrets.token_hex(4)}", store_key())
        super().__init__(self._client)
        self._description: dict[str, object] = {}

    @property
    def endpoint(self) -> str:
        """The place's URL."""
        return str(self._client.server_address_root)

    @property
    def key(self) -> str:
        """The store's key."""
        return self._client.key

    async def start(self) -> None:
        """Do nothing: the store serves already."""

    def expect(self, runners: Sequence[str], free: int, agent: str = "") -> None:
        """Do nothing: the store knows runners once they ask."""

    @classmethod
    def awaited(cls, url: str, say: Callable[[str], None]) -> None:
        """Wait for the store like `runs_at`."""
        runs_at(url, say)

    async def welcome(self, invitation: Mapping[str, object], policy: Endpoint) -> None:
        """Create the place with the invitation for runners and the policy of each rollout.

        Raises:
            RunFailed: As in `keep`.
        """
        resources = resources_of(policy)
        given = {name: one.model_dump(mode="json") for name, one in resources.items()}
        self._description = {"invitation": invitation, "resources": given}
        await self.keep(once=True)

    async def keep(self, *, once: bool = False) -> None:
        """Renew the place until cancelled, or with `once` until it exists.

        Raises:
            RunFailed: The store has not answered for `AWAY_S`, or refuses.
        """
        heard, away = time.monotonic(), False
        while True:
            try:
                session = await self._client._get_session()
                async with session.put(self.endpoint, json=self._description) as answer:
                    if 400 <= answer.status < 500:
                        raise RunFailed(
                            f"the store at {self.endpoint} refuses this run: {await answer.text()}"
                        )
                    answer.raise_for_status()
                heard = time.monotonic()
            except (aiohttp.ClientError, TimeoutError) as error:
                if time.monotonic() - heard > AWAY_S:
                    raise gone(self.endpoint) from error
                if not away:
                    logger.error(
                        "the store at %s does not answer: waiting for it, %g s at most",
                        self.endpoint,
                        AWAY_S,
                    )
                away = True
            else:
                if away:
                    logger.error("the store at %s answers again", self.endpoint)
                if once:
                    return
                away = False
            await asyncio.sleep(ASK_S)

    async def stop(self) -> None:
        """Remove the place and all its data of the run."""
        with suppress(aiohttp.ClientError, TimeoutError):
            session = await self._client._get_session()
            async with session.delete(self.endpoint, timeout=aiohttp.ClientTimeout(total=5)):
                pass
        await self.close()
