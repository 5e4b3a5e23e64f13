"""What happens to tokens at one server is followed by the others, whatever the clocks do."""

from __future__ import annotations

import asyncpg
import pytest

from queen.errors import Unavailable
from queen.service.admin import tokens as tokens_module
from queen.service.admin.tokens import NewToken, Tokens
from queen.storage.database import Database
from tests.ports import free_port


async def _make_token(tokens: Tokens, name: str) -> NewToken:
    return await tokens.create(name, "read-only", None, None, "a test")


async def test_a_revoked_token_is_refused_after_the_clock_went_back(
    database: Database, connection: asyncpg.Connection
) -> None:
    here, elsewhere = Tokens(database), Tokens(database)
    early, revoked = await _make_token(elsewhere, "early"), await _make_token(elsewhere, "revoked")
    # As if it was made by a clock that has gone back by an hour since.
    await connection.execute(
        "update api_tokens set changed_at = changed_at + interval '1 hour' where id = $1", early.id
    )
    await here.refresh()
    assert await here.find(revoked.text) is not None
    assert await elsewhere.revoke(revoked.id, None)
    await here.refresh()
    assert await here.find(revoked.text) is None
    assert await here.find(early.text) is not None


async def test_a_change_that_commits_late_is_not_missed(
    database: Database, connection: asyncpg.Connection
) -> None:
    here, elsewhere = Tokens(database), Tokens(database)
    slow = await _make_token(elsewhere, "slow")
    await here.refresh()
    async with connection.transaction():
        # As a server of an older version does it.
        await connection.execute(
            "update api_tokens set revoked_at = clock_timestamp(),"
            " changed_at = clock_timestamp() where id = $1",
            slow.id,
        )
        quick = await _make_token(elsewhere, "quick")
        await here.refresh()
        assert await here.find(quick.text) is not None
        assert await here.find(slow.text) is not None
    await here.refresh()
    assert await here.find(slow.text) is None


async def test_another_database_in_the_same_place_is_read_from_its_beginning(
    database: Database,
) -> None:
    here, elsewhere = Tokens(database), Tokens(database)
    made = await _make_token(elsewhere, "made")
    # What a server remembers of a database whose transactions had counted much further.
    here._since = 2**40
    await here.refresh()
    assert await here.find(made.text) is not None
    assert here._since < 2**40


async def test_using_a_token_is_no_change(
    database: Database, connection: asyncpg.Connection
) -> None:
    made = await _make_token(Tokens(database), "made")
    changed = "select changed_in::text from api_tokens where id = $1"
    before = await connection.fetchval(changed, made.id)
    await database.execute("touch_tokens", [made.id])
    assert await connection.fetchval(changed, made.id) == before


async def test_without_a_database_no_token_is_called_bad(database: Database) -> None:
    """A client that is refused gives up; one that is told to come later does not."""
    made = await _make_token(Tokens(database), "made")
    nowhere = await Database.connect(f"postgresql://postgres@127.0.0.1:{free_port()}/none")
    tokens = Tokens(nowhere)
    await tokens.start()
    with pytest.raises(Unavailable):
        await tokens.find(made.text)
    await nowhere.close()


async def test_who_asks_nobody_knows_only_what_was_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = Tokens(database), Tokens(database)
    made = await _make_token(elsewhere, "made")
    # Nothing was told yet.
    assert here.known(made.text) is None
    await here.refresh()
    token = here.known(made.text)
    assert token is not None and token.name == "made"
    other = made.text[:-1] + ("a" if made.text[-1] != "a" else "b")
    assert here.known(other) is None
    assert here.known("not a token") is None
    later = await _make_token(elsewhere, "later")
    assert here.known(later.text) is None
    # What was told too long ago is not believed.
    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "_TRUSTED_S", -1.0)
        assert here.known(made.text) is None
    assert await elsewhere.revoke(made.id, None)
    await here.refresh()
    assert here.known(made.text) is None
