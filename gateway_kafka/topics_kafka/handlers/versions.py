"""ApiVersions: the served APIs, and the software of the client."""

import re
from typing import Final

from topics_kafka.handlers import Context, HandlerTable, ServerContext, advertised_versions
from topics_kafka.protocol import ApiKey, ErrorCode, Message

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)
_SOFTWARE_CHARS: Final = 100  # longer texts are cut off


def handlers(server: ServerContext) -> HandlerTable:
    """ApiVersions."""
    versions = advertised_versions(server.apis)

    def api_versions(context: Context, version: int, request: Message) -> Message:
        """Return the APIs with their versions. From version 3 on the request names the client software."""
        if version >= 3:
            name, release = request["client_software_name"], request["client_software_version"]
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(release)):
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
            context.software = f"{name}/{release}"[:_SOFTWARE_CHARS]
        return {"error_code": ErrorCode.NONE, "api_keys": versions}

    return {ApiKey.API_VERSIONS: api_versions}
