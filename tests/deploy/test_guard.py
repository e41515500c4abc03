"""Only nodes are let in from other machines: runs are started, and keys registered, on the machine of the server."""

import asyncio
from typing import Any

import pytest

from fedskew.deploy.guarded_link import OnlyNodes, main


def answered(path: str, client: Any, kind: str = "http") -> list[Any]:
    """Return what is sent in answer to a request to a server at 10.0.0.7."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "server": ("10.0.0.7", 8000)}
    asyncio.run(OnlyNodes(app)(scope, None, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize("client", [("127.0.0.1", 5), ("::1", 5), ("10.0.0.7", 5)])
@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/x", "/v1/fleet/activate-node", "/health"])
def test_the_servers_own_machine_may_do_everything(path: str, client: Any):
    assert answered(path, client)[0]["status"] == 200


@pytest.mark.parametrize("client", [("10.0.0.8", 5), ("testclient", 5), None, ("", 0)])
@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/x", "/", "/docs"])
def test_other_machines_may_not(path: str, client: Any):
    assert answered(path, client)[0]["status"] == 403


def test_nodes_may_from_anywhere():
    assert answered("/v1/fleet/activate-node", ("10.0.0.8", 5))[0]["status"] == 200
    assert answered("/health", ("10.0.0.8", 5))[0]["status"] == 200
    assert answered("/v1/fleet-of-others", ("10.0.0.8", 5))[0]["status"] == 403


def test_the_guard_is_before_all_that_flower_has(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("flwr", reason="needs fedskew[flower]")
    from flwr.superlink import cli, extensions

    monkeypatch.setattr(extensions, "get_middleware", lambda: ("Flower's own",))
    monkeypatch.setattr(cli, "flower_superlink", lambda: None)
    main()
    first, *others = extensions.get_middleware()
    assert first.cls is OnlyNodes
    assert others == ["Flower's own"]


def test_sockets_are_closed():
    assert answered("/v1/control/logs", ("10.0.0.8", 5), "websocket") == [{"type": "websocket.close", "code": 1008}]
    assert answered("", None, "lifespan")[0]["status"] == 200
