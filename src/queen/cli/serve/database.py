"""The database a command works on: the user's, or the embedded one for as long as it runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from urllib.parse import quote, urlsplit

from queen.errors import StartupError


def url_from_environment() -> str | None:
    """Return a database URL from the original broker's variables; None unless PG_HOST is set."""
    env = os.environ
    host = env.get("PG_HOST")
    if not host:
        return None
    user, password = (
        quote(env.get("PG_USER", "postgres"), safe=""),
        quote(env.get("PG_PASSWORD", "postgres"), safe=""),
    )
    port, name = env.get("PG_PORT", "5432"), quote(env.get("PG_DB", "postgres"), safe="")
    mode = ""
    if env.get("PG_USE_SSL") == "true":
        strict = env.get("PG_SSL_REJECT_UNAUTHORIZED", "true") == "true"
        mode = "?sslmode=verify-full" if strict else "?sslmode=require"
    return f"postgresql://{user}:{password}@{host}:{port}/{name}{mode}"


def users_database(given: str | None) -> str | None:
    """Return the URL of the user's database, given or in the environment; None means our own.

    A URL that is set and empty is a secret that got lost. It is refused: a server that started
    with an empty database of its own instead would look as if all messages were gone.
    """
    url = (given or "").strip() or url_from_environment()
    if url:
        return url
    hint = "name a database, or leave it out and the server brings its own"
    if given is not None or "QUEEN_DATABASE_URL" in os.environ:
        raise StartupError(f"QUEEN_DATABASE_URL or --database-url is set, but empty: {hint}")
    if "PG_HOST" in os.environ:
        raise StartupError(f"PG_HOST is set, but empty: {hint}")
    if "QUEEN_DATABASE_URL_FILE" in os.environ:
        raise StartupError(
            "QUEEN_DATABASE_URL_FILE is read by queen-with-secrets only: start that instead"
        )
    return None


def default_data_dir() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("queen"))


class DatabaseInUse:
    """The database to use: the user's, or the embedded one for as long as we run."""

    def __init__(self, url: str | None, data_dir: Path | None) -> None:
        self._url = url
        self._data_dir = data_dir
        self._stop = threading.Event()

    def __enter__(self) -> str:
        if self._url is not None:
            return self._url
        from queen.storage.embedded import EmbeddedPostgres
        from queen.storage.tuning import detect, settings_for

        folder = self._data_dir or default_data_dir()
        self._embedded = EmbeddedPostgres(folder, settings_for(*detect()))
        self._embedded.start()
        self._watch = threading.Thread(
            target=self._embedded.supervise, args=(self._stop,), daemon=True
        )
        self._watch.start()
        return self._embedded.dsn

    def __exit__(self, *_: object) -> None:
        if self._url is None:
            # Whoever asks twice to stop must not leave a PostgreSQL behind.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._stop.set()
            self._watch.join(timeout=30)
            self._embedded.stop()


def warn_about_link(dsn: str) -> None:
    """Say so when messages cross a network to the database that nobody has verified."""
    from queen.server.auth.options import is_loopback

    try:
        parts = urlsplit(dsn)
    except ValueError as error:
        raise StartupError(f"the URL of the database is not one: {error}") from error
    host = parts.hostname or ""
    if host and not is_loopback(host) and "sslmode=verify-full" not in parts.query:
        logging.getLogger(__name__).warning(
            "the database is on another machine and its certificate is not verified: "
            "use sslmode=verify-full"
        )
