"""Options of queues: read in full, and changed one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec

from queen.core.options import QueueOptions
from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.contract.test_configure import DEFAULTS, configure


def path_of(queue: str) -> str:
    return f"/api/v1/resources/queues/{quote(queue, safe='')}/options"


def alter(api: Api, queue: str, **body: Any) -> Answer:
    return api.call("PATCH", path_of(queue), body)


def options_of(api: Api, queue: str) -> dict[str, dict[str, Any]]:
    answer = api.call("GET", path_of(queue))
    assert answer.status == 200, answer.raw
    return {option["name"]: option for option in answer.json["options"]}


def test_every_option_is_shown_with_its_default_origin_and_meaning(api: Api, queue: str) -> None:
    configure(api, queue=queue, namespace="n", task="t", options={"leaseTime": 5, "dedup": "off"})
    answer = api.call("GET", path_of(queue)).json
    assert (answer["queue"], answer["namespace"], answer["task"]) == (queue, "n", "t")
    options = options_of(api, queue)
    assert {name: option["default"] for name, option in options.items()} == DEFAULTS
    assert {name for name, option in options.items() if option["origin"] == "set"} == {
        "leaseTime",
        "dedup",
    }
    assert all(option["meaning"] for option in options.values())
    assert options["leaseTime"]["value"] == 5
    assert options["leaseTime"]["type"] == "integer"
    assert options["leaseTime"]["minimum"] == 1
    assert options["dedup"]["choices"] == ["forever", "off", "window"]
    assert options["retentionEnabled"]["type"] == "boolean"


def test_an_option_set_to_its_default_counts_as_set(api: Api, queue: str) -> None:
    configure(api, queue=queue, options={"leaseTime": 300, "ttl": None})
    options = options_of(api, queue)
    assert (options["leaseTime"]["origin"], options["ttl"]["origin"]) == ("set", "default")


def test_other_routes_show_all_options_too(api: Api, queue: str) -> None:
    configure(api, queue=queue, options={"leaseTime": 5})
    api.push_many(queue, 1)
    detail = api.call("GET", f"/api/v1/resources/queues/{queue}").json
    values = {option["name"]: option["value"] for option in detail["options"]}
    assert values == {**DEFAULTS, "leaseTime": 5}
    status = api.call("GET", f"/api/v1/status/queues/{queue}").json
    assert status["queue"]["options"] == values


def test_only_what_is_named_changes(api: Api, queue: str) -> None:
    named = {"encryptionEnabled": True, "retentionEnabled": True, "retentionSeconds": 60}
    first = configure(api, queue=queue, namespace="shop", task="billing", options=named)
    answer = alter(api, queue, options={"leaseTime": 7})
    assert answer.status == 200
    assert answer.json["options"] == {**DEFAULTS, **named, "leaseTime": 7}
    assert (answer.json["namespace"], answer.json["task"]) == ("shop", "billing")
    assert answer.json["changed"] == [{"name": "leaseTime", "before": 300, "now": 7}]
    assert answer.json["created"] is False
    assert answer.json["queueId"] == first["queueId"]


def test_a_null_goes_back_to_the_default(api: Api, queue: str) -> None:
    configure(api, queue=queue, options={"leaseTime": 7, "ttl": 60})
    answer = alter(api, queue, options={"leaseTime": None})
    assert answer.json["options"] == {**DEFAULTS, "ttl": 60}
    assert options_of(api, queue)["leaseTime"]["origin"] == "default"


def test_encryption_and_labels_go_only_when_that_is_said(api: Api, queue: str) -> None:
    options = {"encryptionEnabled": True}
    configure(api, queue=queue, namespace="shop", task="billing", options=options)
    refused = alter(api, queue, options={"encryptionEnabled": None})
    assert refused.status == 400
    assert "say false" in refused.json["error"]
    answer = alter(api, queue, namespace=None, task=None, options=None)
    assert (answer.json["namespace"], answer.json["options"]["encryptionEnabled"]) == ("shop", True)
    answer = alter(api, queue, namespace="", options={"encryptionEnabled": False})
    assert answer.json["namespace"] == ""
    assert answer.json["task"] == "billing"
    assert answer.json["options"]["encryptionEnabled"] is False


def test_a_queue_that_does_not_exist_is_made_only_when_asked(api: Api, queue: str) -> None:
    assert alter(api, queue, options={"leaseTime": 7}).status == 404
    assert api.call("GET", path_of(queue)).status == 404
    answer = alter(api, queue, create=True, namespace="n", options={"leaseTime": 7})
    assert answer.status == 201
    assert answer.json["created"] is True
    assert answer.json["changed"] == []
    assert answer.json["options"] == {**DEFAULTS, "leaseTime": 7}
    again = alter(api, queue, create=True)
    assert again.status == 200
    assert again.json["options"] == answer.json["options"]


def test_bad_options_are_refused_by_name_and_change_nothing(api: Api, queue: str) -> None:
    configure(api, queue=queue, options={"ttl": 9})
    for options in ({"leaseTime": 0}, {"leasetime": 5}, {"dedup": "sometimes"}, {"ttl": "1"}):
        answer = alter(api, queue, options={**options, "priority": 5})
        assert answer.status == 400, options
    assert alter(api, queue, optoins={}).status == 400
    assert alter(api, queue, namespace="a\nb").status == 400
    assert {name: one["value"] for name, one in options_of(api, queue).items()} == {
        **DEFAULTS,
        "ttl": 9,
    }


def test_a_change_can_insist_on_what_it_has_seen(api: Api, queue: str) -> None:
    configure(api, queue=queue)
    seen = api.call("GET", path_of(queue)).json["revision"]
    assert alter(api, queue, revision=seen, options={"ttl": 1}).json["revision"] == seen + 1
    stale = alter(api, queue, revision=seen, options={"ttl": 2})
    assert stale.status == 409
    assert "changed meanwhile" in stale.json["error"]
    # The same change again: its first answer may have been lost.
    assert alter(api, queue, revision=seen, options={"ttl": 1}).status == 200


def test_changes_of_different_options_at_once_all_hold(
    server: ServerProcess, api: Api, queue: str
) -> None:
    """None overwrites what another has just written."""
    changes = [{"leaseTime": 7}, {"ttl": 60}, {"priority": 3}, {"retryLimit": 9}, {"maxSize": 50}]

    def change(options: dict[str, int]) -> int:
        with closing(Api(server.url)) as own:
            return alter(own, queue, create=True, options=options).status

    with ThreadPoolExecutor(len(changes)) as pool:
        assert set(pool.map(change, changes)) <= {200, 201}
    values = {name: option["value"] for name, option in options_of(api, queue).items()}
    assert values == DEFAULTS | {name: value for one in changes for name, value in one.items()}


def test_a_change_is_in_the_audit_trail(api: Api, queue: str) -> None:
    configure(api, queue=queue)
    alter(api, queue, options={"ttl": 5})
    (entry,) = api.call("GET", "/api/v1/system/audit?act=queue.alter&limit=1").json["entries"]
    assert (entry["target"], entry["detail"]["changed"]) == (queue, {"ttl": [0, 5]})


async def test_what_an_older_server_has_written_counts_as_default_where_it_is(
    own_database: str,
) -> None:
    """The migration takes out what nobody can tell from the default."""
    script = (files("queen.storage") / "sql/migrations/0018_named_options.sql").read_text()
    connection = await asyncpg.connect(own_database)
    try:
        # The options that there were then.
        written = msgspec.to_builtins(QueueOptions(lease_time=5))
        known = {name: value for name, value in written.items() if f'"{name}"' in script}
        full = msgspec.json.encode(known).decode()
        for name, options in (("full", full), ("empty", "{}")):
            await connection.execute(
                "insert into queen.queues (name, options) values ($1, $2)", name, options
            )
        await connection.execute(script)
        rows = await connection.fetch("select name, options from queen.queues")
    finally:
        await connection.close()
    stored = {row["name"]: msgspec.json.decode(row["options"]) for row in rows}
    assert stored == {"full": {"leaseTime": 5}, "empty": {}}
