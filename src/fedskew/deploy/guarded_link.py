"""Flower's SuperLink with a guard: from other machines, nodes are let in, and nothing else.

The port of a SuperLink serves nodes, and also those who start runs and register nodes' keys, whom Flower does not ask
who they are. These must be on the machine of the server.
"""

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Call: TypeAlias = Callable[..., Awaitable[Any]]
OPEN = ("/v1/fleet/", "/health")  # for nodes, and to see whether the server is there


class OnlyNodes:
    """Refuses requests of other machines that are not those of nodes."""

    def __init__(self, app: Call) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Call, send: Call) -> None:
        """Answer a request."""
        if scope["type"] not in ("http", "websocket") or scope["path"].startswith(OPEN) or _from_here(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"only on the machine of the server"})


def _from_here(scope: Scope) -> bool:
    """Return whether a request comes from this machine: by the loopback, or from the address that it goes to."""
    client, server = (scope.get(side) or ("",) for side in ("client", "server"))
    try:
        return ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False


def main() -> None:
    """Run ``flower-superlink`` with the guard before everything else."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    others = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(OnlyNodes), *others())
    flower_superlink()


if __name__ == "__main__":
    main()
