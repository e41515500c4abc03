"""The guards of the server: who may do what, how much is taken of whom, and that it does not outlive its parts.

Runs are started, and keys registered, on the machine of the server; only nodes are let in from others.
"""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.deploy import flower_patches, guarded_link
from fedskew.deploy.guarded_link import AT_ONCE, STRANGER, BoundedBodies, OnlyNodes, main
from fedskew.transport.message_sizes import BODY, LARGEST, OBJECTS, PART


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
@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/x", "/v1/fleet/activate-node", "/health"]
)
def test_the_servers_own_machine_may_do_everything(path: str, client: Any):
    assert answered(path, client)[0]["status"] == 200


@pytest.mark.parametrize("client", [("10.0.0.8", 5), ("testclient", 5), None, ("", 0)])
@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/x", "/", "/docs"]
)
def test_other_machines_may_not(path: str, client: Any):
    assert answered(path, client)[0]["status"] == 403


def test_nodes_may_from_anywhere():
    assert answered("/v1/fleet/activate-node", ("10.0.0.8", 5))[0]["status"] == 200
    assert answered("/health", ("10.0.0.8", 5))[0]["status"] == 200
    assert answered("/v1/fleet-of-others", ("10.0.0.8", 5))[0]["status"] == 403


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what the guards change of Flower, put back afterwards; nothing is started."""
    pytest.importorskip("flwr", reason="needs fedskew[flower]")
    import uvicorn
    from flwr.supercore import sql_mixin
    from flwr.superlink import cli, extensions
    from flwr.superlink.servicer.fleet import fleet_handlers

    link = sys.modules["flwr.superlink.cli.flower_superlink"]
    monkeypatch.setattr(extensions, "get_middleware", lambda: ("Flower's own",))
    monkeypatch.setattr(extensions, "configure_app", lambda app: None)
    monkeypatch.setattr(fleet_handlers, "push_messages", lambda request, state: "pushed")
    monkeypatch.setattr(fleet_handlers, "activate_node", fleet_handlers.activate_node)
    monkeypatch.setattr(link, "SuperLinkLifespan", link.SuperLinkLifespan)
    monkeypatch.setattr(link, "_get_superexec_command", link._get_superexec_command)
    monkeypatch.setattr(flower_patches, "log_plainly", lambda: None)
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    monkeypatch.setattr(uvicorn, "run", lambda **given: given)
    monkeypatch.setattr(cli, "flower_superlink", lambda: None)
    return SimpleNamespace(
        extensions=extensions, handlers=fleet_handlers, sql=sql_mixin, uvicorn=uvicorn
    )


def test_the_guards_are_before_all_that_flower_has(flower: SimpleNamespace):
    main()
    first, second, *others = flower.extensions.get_middleware()
    assert (first.cls, second.cls) == (OnlyNodes, BoundedBodies)
    assert others == ["Flower's own"]
    assert flower.uvicorn.run(app=1)["http"] == "h11"  # which takes headers of 64 KiB at most
    kept = dict(flower.sql.SQLITE_PRAGMAS)
    assert (kept["cache_size"], kept["mmap_size"], kept["journal_mode"]) == ("-4000", "0", "WAL")


def test_sockets_are_closed():
    assert answered("/v1/control/logs", ("10.0.0.8", 5), "websocket") == [
        {"type": "websocket.close", "code": 1008}
    ]
    assert answered("", None, "lifespan")[0]["status"] == 200


def bodies(
    sizes: list[int], said: int | None, path: str = "/v1/fleet/push-object", known: bool = True
) -> Any:
    """Return the status of the answer to a body in such pieces, what of it was read, and what was handed on."""
    sent: list[Any] = []
    pieces, handed = iter(sizes), []
    read: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        handed.append(len(message["body"]))
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Any:
        read.append(next(pieces))
        return {
            "type": "http.request",
            "body": bytes(read[-1]),
            "more_body": len(read) < len(sizes),
        }

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if said is None else [(b"content-length", str(said).encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(BoundedBodies(app, lambda scope: known)(scope, receive, send))
    return sent[0]["status"], sum(read), handed


def test_what_a_run_needs_is_taken():
    assert bodies([PART, PART], BODY) == (200, BODY, [BODY])
    assert bodies([10, 20], 30, known=False) == (200, 30, [30])
    assert bodies([STRANGER], STRANGER, known=False) == (200, STRANGER, [STRANGER])
    assert bodies([0], None) == (200, 0, [0])
    assert bodies([PART], PART, "/v1/runtime/push-object", known=False) == (200, PART, [PART])
    assert OBJECTS * PART >= LARGEST


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/runtime/push-object", "/health"])
@pytest.mark.parametrize("said", [BODY + 1, 300_000_000, 10**30])
def test_a_body_that_is_too_large_is_not_read(path: str, said: int):
    assert bodies([said], said, path) == (413, 0, [])


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/fleet/register-node", "/health"])
def test_a_stranger_may_send_little(path: str):
    assert bodies([STRANGER + 1], STRANGER + 1, path, known=False) == (413, 0, [])


@pytest.mark.parametrize("known", [True, False])
def test_a_body_of_unknown_size_is_read_until_it_is_too_large(known: bool):
    assert bodies([40_000] * 1000, None, known=known) == (413, 80_000, [])
    assert bodies([40_000, 10], None, known=known) == (200, 40_010, [40_010])


def test_so_many_large_bodies_are_in_memory_at_once():
    inside, most = set[int](), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        inside.add(id(scope))
        most = max(most, len(inside))
        await asyncio.sleep(0.01)
        inside.remove(id(scope))

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(10), "more_body": False}

    async def all_at_once() -> None:
        guard = BoundedBodies(app, lambda scope: True)
        scope = {
            "type": "http",
            "path": "/v1/fleet/push-object",
            "headers": [(b"content-length", b"100000")],
        }
        await asyncio.gather(*(guard(dict(scope), receive, None) for _ in range(3 * AT_ONCE)))  # type: ignore[arg-type]

    asyncio.run(all_at_once())
    assert most == AT_ONCE


def test_a_body_that_does_not_arrive_gives_its_place_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded_link, "PATIENCE", 0.05)
    sent: list[Any] = []

    async def never() -> None:
        await asyncio.sleep(60)

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def one_after_another() -> None:
        guard = BoundedBodies(never, lambda scope: True)
        scope = {
            "type": "http",
            "path": "/v1/fleet/push-object",
            "headers": [(b"content-length", b"100000")],
        }
        await guard(scope, never, send)
        assert sent[0]["status"] == 408
        await guard(scope, gone, send)
        assert len(sent) == 2  # and nothing to one who is not there any more
        assert guard.places._value == AT_ONCE

    asyncio.run(one_after_another())


def test_an_answer_has_no_more_objects_than_the_largest_one(flower: SimpleNamespace):
    from fastapi import HTTPException
    from flwr.proto.message_pb2 import ObjectTree

    def request(parts: int) -> Any:
        records = ObjectTree(
            object_id="records", children=[ObjectTree(object_id=str(i)) for i in range(parts)]
        )
        return SimpleNamespace(
            message_object_trees=[ObjectTree(object_id="message", children=[records])]
        )

    main()
    assert flower.handlers.push_messages(request=request(OBJECTS - 2), state=None) == "pushed"
    with pytest.raises(
        HTTPException, match=f"413: an answer of {OBJECTS + 1} objects is more than"
    ):
        flower.handlers.push_messages(request=request(OBJECTS - 1), state=None)


def test_a_database_that_is_locked_is_no_error_of_the_server(
    flower: SimpleNamespace, capsys: pytest.CaptureFixture[str]
):
    """Flower's programs ask again after 503, and end after 500."""
    import httpx
    from fastapi import FastAPI
    from sqlalchemy.exc import OperationalError

    main()
    app = FastAPI()
    flower.extensions.configure_app(app)

    @app.get("/{what}")
    def fail(what: str) -> None:
        raise (
            OperationalError("INSERT", {}, Exception("database is locked"))
            if what == "locked"
            else ValueError(what)
        )

    async def status(what: str) -> int:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get(f"http://h/{what}")).status_code

    assert asyncio.run(status("locked")) == 503
    assert asyncio.run(status("wrong")) == 500
    assert "/locked: the database could not be used" in capsys.readouterr().err


def test_keys_of_registered_nodes_are_known(flower: SimpleNamespace):
    import httpx
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private, public = generate_key_pairs()
    other, unknown = generate_key_pairs()
    registered = {public_key_to_bytes(public): 7}
    state = SimpleNamespace(get_node_id_by_public_key=registered.get)
    app = SimpleNamespace(
        state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state))
    )

    def known(*pair: Any) -> bool:
        """Return whether a request is known that a node with these keys has signed, as Flower's nodes do."""
        request = httpx.Request("POST", "http://h/v1/fleet/push-object")
        if pair:
            context: Any = SimpleNamespace(request=request)
            NodeAuthHttpInterceptor(*pair).intercept(context, lambda context: httpx.Response(200))
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        return guarded_link.signed_by_a_node(
            {"type": "http", "app": app, "path": request.url.path, "headers": headers}
        )

    assert known(private, public)
    assert not known(other, unknown)  # signed, and not registered
    assert not known(other, public)  # registered, and signed by somebody else
    assert not known()
