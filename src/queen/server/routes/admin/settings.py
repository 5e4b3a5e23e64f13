"""/api/v1/system/settings: what this server was told, and by what."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.wire.admin.system import Setting, SettingList

_SETTINGS = Doc(
    "system",
    "The options of this server",
    "Each with its value and where that comes from. Of a secret only whether there is one is "
    "told; a password in a URL is left out.",
    answers={200: SettingList},
)


class SettingsRoutes:
    def __init__(self, settings: Sequence[Setting]) -> None:
        self._body = msgspec.json.encode(SettingList(list(settings)))

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/system/settings", Role.ADMIN, self.settings, _SETTINGS)]

    async def settings(self, _request: Request) -> Response:
        return Response(200, self._body)
