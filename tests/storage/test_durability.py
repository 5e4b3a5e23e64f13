"""A database that may lose confirmed commits is refused."""

from __future__ import annotations

import pytest

from queen.errors import WeakDurability
from queen.storage.database import Database


async def test_ordinary_settings_are_accepted(database: Database) -> None:
    await database.check_durability()


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_a_weaker_setting_is_named(
    database: Database, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def weak(_name: str) -> list[dict[str, str]]:
        return [{"name": setting, "setting": "off"}, {"name": "other", "setting": "on"}]

    monkeypatch.setattr(database, "fetch", weak)
    with pytest.raises(WeakDurability, match=f"{setting}=off"):
        await database.check_durability()
