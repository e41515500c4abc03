"""Flower's SuperLink with guards: who may ask for what, how much it takes at once, and that none of its parts is dead.

The port of a SuperLink serves nodes, and also those who start runs and register nodes' keys, whom Flower does not ask
who they are. These must be on the machine of the server. Flower reads all that it is sent before it looks who sends it.
"""

import asyncio
import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from fedskew.deploy import flower_patches
from fedskew.transport.message_sizes import BODY

Scope: TypeAlias = MutableMapping[str, Any]
Call: TypeAlias = Callable[..., Awaitable[Any]]
OPEN = ("/v1/fleet/", "/health")  # paths for nodes, and for whoever asks whether the server is up
STRANGER = 2**16  # bytes that somebody may send who has not signed as a node
AT_ONCE = 16  # larger bodies that are in memory at a time; further ones wait
PATIENCE = 120.0  # seconds for a body to arrive


class OnlyNodes:
    """Refuses requests of other machines that are not those of nodes."""

    def __init__(self, app: Call) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Call, send: Call) -> None:
        """Answer a request."""
        if _is_allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send, 403, "only on the machine of the server")


class BoundedBodies:
    """Reads what is sent, if it is no more than a run needs; the rest is refused before it is in memory.

    What is large must be signed by the key of a registered node, or come from the machine of the server. ``known`` says
    whether it is signed so.
    """

    def __init__(self, app: Call, known: Callable[[Scope], bool]) -> None:
        self.app, self.known = app, known
        self.places = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Call, send: Call) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = _length(scope)
        if length <= STRANGER:
            await self._read(scope, receive, send, STRANGER)
        elif length > BODY:
            reason = f"{length} bytes are more than the {BODY} that are taken at once"
            await _refuse(send, 413, reason)
        elif scope["path"].startswith(OPEN) and not await asyncio.to_thread(self.known, scope):
            reason = (
                f"{length} bytes are more than the {STRANGER} of one who is not a registered node"
            )
            await _refuse(send, 413, reason)
        else:
            async with self.places:
                await self._read(scope, receive, send, BODY)

    async def _read(self, scope: Scope, receive: Call, send: Call, most: int) -> None:
        """Read a body of at most so many bytes, and hand it on."""
        try:
            async with asyncio.timeout(PATIENCE):
                body = await _body(receive, most)
        except TimeoutError:
            await _refuse(send, 408, f"not there after {PATIENCE:g} seconds")
            return
        except _TooLargeError:
            await _refuse(send, 413, f"more than {most} bytes, and how many was not said before")
            return
        if body is None:
            return
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        del body  # the app has the only copy, and lets go of it when it is done

        async def receive_body_first() -> Any:
            if unread:
                return unread.pop()
            return await receive()

        await self.app(scope, receive_body_first, send)


class _TooLargeError(Exception):
    """Raised where a body is larger than what is taken."""


async def _body(receive: Call, most: int) -> bytes | None:
    """Return the body of a request; None if whoever sends it has gone."""
    content = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        content += message.get("body", b"")
        more = message.get("more_body", False)
        if len(content) > most:
            raise _TooLargeError
    return bytes(content)


async def _refuse(send: Call, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})


def _is_allowed(scope: Scope) -> bool:
    """Return whether a request is for a path of nodes, or comes from this machine, or is no HTTP or WebSocket."""
    if scope["type"] not in ("http", "websocket"):
        return True
    return scope["path"].startswith(OPEN) or _from_here(scope)


def _from_here(scope: Scope) -> bool:
    """Return whether a request comes from this machine: by the loopback, or from the address that it goes to."""
    client = (scope.get("client") or ("",))[0]
    server = (scope.get("server") or ("",))[0]
    try:
        return ipaddress.ip_address(client).is_loopback or client == server
    except ValueError:
        return False


def _length(scope: Scope) -> int:
    """Return how many bytes a request says that it has; 0 where it does not say."""
    said = dict(scope["headers"]).get(b"content-length", b"0")
    if said.isdigit():
        return int(said)
    return 0


def signed_by_a_node(scope: Scope) -> bool:
    """Return whether a request is signed by the key of a registered node, as Flower asks for when it has read it."""
    from base64 import b64decode

    from fastapi import HTTPException, Request
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node

    request = Request({**scope, "state": {}})
    try:
        key = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
        # Of an activation, Flower checks nothing but that it has the key which signed the request.
        request.state.protobuf_request = ActivateNodeRequest(public_key=key)
        authenticate_node(request)
    except (HTTPException, ValueError):
        return False
    return get_linkstate(request).get_node_id_by_public_key(key) is not None


def main() -> None:
    """Run ``flower-superlink`` with all guards."""
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    flower_patches.log_plainly()
    flower_patches.guard_requests(
        [Middleware(OnlyNodes), Middleware(BoundedBodies, signed_by_a_node)]
    )
    flower_patches.bound_answers()
    flower_patches.say_why_refused()
    flower_patches.say_busy()
    flower_patches.keep_little()
    flower_patches.end_soon()
    ended = flower_patches.start_runs_with("fedskew.deploy.app_processes")
    flower_superlink()
    if ended:
        sys.exit(f"{ended[0]}, and so does this server: start it again with the same --state")


if __name__ == "__main__":
    main()
