"""Where each page is, with the data of these tests; every page of the dashboard stands here."""

from __future__ import annotations

from urllib.parse import quote

from tests.browser.data import ORDERS
from tests.browser.stream_data import COUNTS, JOBS, PIPELINE
from tests.security.client import Client

ADDRESSES = {
    "/": "/",
    "/queues": "/queues",
    "/queues/{queue}": f"/queues/{ORDERS}",
    "/messages": f"/messages?queue={ORDERS}",
    "/messages/{partition}/{message}": "",
    "/groups": "/groups",
    "/groups/{group}": f"/groups/billing?queue={ORDERS}",
    "/dead-letters": "/dead-letters",
    "/schedules": "/schedules",
    "/streams": "/streams",
    "/streams/{stream}": f"/streams/{COUNTS}?group=totals",
    "/pipelines": "/pipelines",
    "/pipelines/{pipeline}": f"/pipelines/{PIPELINE}",
    "/stream-broker": "/stream-broker",
    "/stream-broker/{stream}": f"/stream-broker/{JOBS}",
    "/map": "/map",
    "/spool": "/spool",
    "/system": "/system?tab=postgres",
}


def message_address(admin: Client, queue: str, status: str = "") -> str:
    """Return the address of the newest message of a queue."""
    path = f"/api/v1/messages?queue={quote(queue, safe='')}&limit=1&status={status}"
    newest = admin.call("GET", path).json["messages"][0]
    return f"/messages/{newest['partitionId']}/{newest['id']}"
