"""All that fedskew changes in Flower; ``tests/deploy/test_flower_patches.py`` fails when Flower itself changes it.

Each function says what Flower does by itself, and why that does not do. Nothing else in fedskew sets a name there.
"""

import errno
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.transport.message_sizes import OBJECTS

if TYPE_CHECKING:
    from flwr.serverapp import Grid

# Seconds until the second look for a part of a message; they double until it is there
_AGAIN = 0.05
# Seconds for which a server that does not answer, or answers that it cannot now, is asked again
BUSY = 60.0
# Seconds for those who are connected when the server ends
_ENDING = 5
# Seconds that a node waits beyond the time at which the server forgets another one with its key
_CLOCKS = 2.0
_NOT_ACTIVATED = 2004  # Flower's code for a node that may not connect


# -- messages ----------------------------------------------------------------------------------------------------------


def look_again_soon() -> None:
    """Look for a part of a message that is still on its way after a twentieth of a second: Flower waits for one."""
    from flwr.supercore.inflatable.inflatable_utils import (
        pull_and_inflate_object_from_tree,
        pull_objects,
    )

    for function in (pull_objects, pull_and_inflate_object_from_tree):
        function.__kwdefaults__["initial_backoff"] = _AGAIN  # type: ignore[index]


def wait_for_parts(seconds: float) -> None:
    """Wait so long for the parts of an answer that a node has begun to send: Flower waits for hours."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    pull_objects.__kwdefaults__["max_time"] = seconds  # type: ignore[index]


def wait_for_message(seconds: float) -> None:
    """Let the process of a message give up after so many seconds without it: Flower's waits for hours."""
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    pull_and_inflate_object_from_tree.__kwdefaults__["max_time"] = seconds  # type: ignore[index]


def try_again(grid: "Grid") -> None:
    """Repeat a request that failed, for a minute.

    Flower repeats one for ever or, where the server answers 500 for whatever went wrong there, not at all.
    """
    invoker: Any = grid._retry_invoker  # type: ignore[attr-defined]
    flower_gives_up = invoker.should_giveup

    def gives_up(problem: Exception) -> bool:
        response = getattr(problem, "response", None)
        server_failed: bool = getattr(response, "status_code", None) == 500
        return not server_failed and flower_gives_up(problem)

    invoker.should_giveup, invoker.max_time = gives_up, BUSY


# -- the server --------------------------------------------------------------------------------------------------------


def guard_requests(guards: Sequence[Any]) -> None:
    """Put guards before everything else that Flower does with a request."""
    from flwr.superlink import extensions

    get_flower_middleware = extensions.get_middleware
    extensions.get_middleware = lambda: (*guards, *get_flower_middleware())


def bound_answers() -> None:
    """Refuse answers of more objects than the largest one of a run has: Flower takes any number."""
    from fastapi import HTTPException
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.superlink.servicer.fleet import fleet_handlers

    push_messages = fleet_handlers.push_messages

    def bounded(request: Any, state: Any) -> Any:
        for tree in request.message_object_trees:
            count = sum(1 for _ in iterate_object_tree(tree))
            if count > OBJECTS:
                raise HTTPException(
                    413, f"an answer of {count} objects is more than the {OBJECTS} that are taken"
                )
        return push_messages(request, state)

    fleet_handlers.push_messages = bounded


def say_why_refused() -> None:
    """Tell a node why it may not connect: Flower has one answer for an unknown key and for one in use."""
    from flwr.supercore.error import FlowerError
    from flwr.superlink.servicer.fleet import fleet_handlers

    activate_node = fleet_handlers.activate_node

    def activate(request: Any, state: Any) -> Any:
        try:
            return activate_node(request, state)
        except FlowerError as problem:
            if problem.code == _NOT_ACTIVATED:
                problem.public_details = _why_not_activated(state, request.public_key)
            raise

    fleet_handlers.activate_node = activate


UNKNOWN_KEY = "unknown key"
IN_USE = "in use for"  # followed by seconds


def _why_not_activated(state: Any, key: bytes) -> str:
    """Return in one word, and seconds where they matter, why a node with this key may not connect."""
    node_id = state.get_node_id_by_public_key(key)
    if node_id is None:
        return UNKNOWN_KEY
    (node,) = state.get_node_info(node_ids=[node_id])
    return f"{IN_USE} {max(0.0, node.online_until - time.time()):.0f}"


def say_busy() -> None:
    """Answer 503 where the database is locked: Flower's programs ask again after that, and end after its 500."""
    from fastapi.responses import JSONResponse
    from flwr.superlink import extensions
    from sqlalchemy.exc import OperationalError

    configure_flower = extensions.configure_app

    def busy(request: Any, problem: Exception) -> Any:
        print(f"{request.url.path}: the database could not be used: {problem}", file=sys.stderr)
        return JSONResponse({"detail": "the database cannot be used now"}, 503)

    def configure(app: Any) -> None:
        configure_flower(app)
        app.add_exception_handler(OperationalError, busy)

    extensions.configure_app = configure


def keep_little() -> None:
    """Let each connection to the database keep 4 MB of it in memory: Flower's keep 320 MB, and there are up to 15."""
    sql: Any = import_module("flwr.supercore.sql_mixin")
    smaller = {"cache_size": "-4000", "mmap_size": "0"}
    pragmas = []
    for name, value in sql.SQLITE_PRAGMAS:
        pragmas.append((name, smaller.get(name, value)))
    sql.SQLITE_PRAGMAS = tuple(pragmas)


def start_runs_with(module: str) -> list[str]:
    """Let a module of fedskew start runs, and the server end when it ends; return a list that then says so.

    Flower's ``flower-superexec`` may end, and then no run starts any more, and nobody is told.
    """
    # By its path, as the package also has a function of this name, which an import would give.
    link: Any = import_module("flwr.superlink.cli.flower_superlink")
    command_of_flower = link._get_superexec_command
    ended: list[str] = []

    def command(*given: Any, **named: Any) -> list[str]:
        _, *options = command_of_flower(*given, **named)
        return [sys.executable, "-m", module, *options]

    class Watched(link.SuperLinkLifespan):  # type: ignore[misc]
        ending = False

        def startup(self) -> None:
            super().startup()
            threading.Thread(target=self.watch, daemon=True).start()

        def shutdown(self) -> None:
            self.ending = True
            super().shutdown()

        def watch(self) -> None:
            status = self.superexec_process.wait()
            if not self.ending:
                ended.append(f"what starts runs has ended (status {status})")
                os.kill(os.getpid(), signal.SIGINT)

    link._get_superexec_command = command
    link.SuperLinkLifespan = Watched
    return ended


def end_soon() -> None:
    """End within seconds when asked to: Flower waits for those who are connected, and its nodes stay connected.

    h11 also refuses headers without end, which the other reader of uvicorn keeps.
    """
    import uvicorn

    uvicorn.run = partial(uvicorn.run, http="h11", timeout_graceful_shutdown=_ENDING)


# -- nodes, and what starts processes ----------------------------------------------------------------------------------


def start_apps_by(launch: Callable[[Any], None]) -> None:
    """Let ``launch`` start the process of an app: Flower starts Python, which imports PyTorch every time."""
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    class Launching(SubprocessExecutor):
        def launch(self, spec: Any) -> LaunchResult:
            launch(spec)
            return LaunchResult.accepted()

    run_superexec.get_executor = lambda *given, **named: Launching()  # type: ignore[attr-defined]


def keep_errors_here() -> None:
    """Tell the server of an error outside fedskew what kind it is: Flower sends its words, in which paths may be."""
    running: Any = import_module("flwr.supernode.runtime.run_clientapp")
    flower_error = running.Error

    def plain(code: int, reason: str) -> Any:
        words = "an error of the node, which is told in its log"
        if f"[Errno {errno.ENOSPC}]" in reason:
            words = "the disk of the node is full: free some space"
        return flower_error(code=code, reason=words)

    running.Error = plain


def look_for_messages_at(pace: Any) -> None:
    """Let a node wait between two looks for a message as ``pace.sleep`` does: Flower waits for three seconds."""
    from flwr.supernode import start_client_internal

    start_client_internal.time = pace  # type: ignore[attr-defined]


def connect_in_time(said: Callable[[str], None] = print) -> None:
    """Let a node say why it is refused, and wait where the server still counts one that was killed as connected.

    Flower's node ends with one code for an unknown key, a key in use and a restart within the minute in which a server
    waits for signs of life.
    """
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from httpx import HTTPStatusError

    activate_node = FleetHttpClient.ActivateNode

    def activate(client: Any, request: Any) -> Any:
        waited = False
        while True:
            try:
                return activate_node(client, request)
            except HTTPStatusError as problem:
                reason = _reason_of(problem.response.text)
                if not reason.startswith(IN_USE):
                    raise _why_refused(reason, problem) from None
                if waited:
                    raise FedskewError(
                        "another process is connected with this key: stop it, or register a key for this node"
                    ) from None
                seconds = float(reason.removeprefix(IN_USE)) + _CLOCKS
                said(
                    f"the server counts a node with this key as connected for {seconds:.0f} s more, as after a crash: "
                    "waiting"
                )
                time.sleep(seconds)
                waited = True

    FleetHttpClient.ActivateNode = activate  # type: ignore[method-assign, assignment]


def _reason_of(answer: str) -> str:
    """Return why a server says that a node may not connect; nothing where it does not say."""
    from flwr.supercore.error import FlowerError

    problem = FlowerError.from_json(answer)
    if problem is None or problem.code != _NOT_ACTIVATED:
        return ""
    return problem.public_details or ""


def _why_refused(reason: str, problem: Exception) -> Exception:
    """Return the error for a reason; Flower's own where there is none."""
    if reason == UNKNOWN_KEY:
        return FedskewError(
            "the server does not know the key of this node: on the server, flwr supernode register NAME.pub, then "
            "start the node again"
        )
    return problem


# -- logs --------------------------------------------------------------------------------------------------------------


def log_plainly() -> None:
    """Log with the time, without colours, and without the source lines of errors and warnings that say what to do.

    Flower's programs have two formats, of which one has colours even in files.
    """
    import uvicorn.config
    from flwr.supercore.http_logging import LOG_FORMAT, UTCFormatter
    from flwr.supercore.logger import console_handler, log

    class Plain(UTCFormatter):
        def formatException(self, problem: Any) -> str:  # noqa: N802
            if isinstance(problem[1], FedskewError):
                return ""
            return super().formatException(problem)

        def format(self, record: logging.LogRecord) -> str:
            record.exc_text = None
            return super().format(record).rstrip()

    def show(message: Warning | str, *where: Any, **also: Any) -> None:
        log(logging.WARNING, "%s", message)

    for formatter in uvicorn.config.LOGGING_CONFIG["formatters"].values():
        formatter.clear()
        formatter.update({"()": Plain, "format": LOG_FORMAT})
    console_handler.format = Plain(LOG_FORMAT).format  # type: ignore[method-assign]
    console_handler.addFilter(lambda record: bool(record.getMessage().strip()))
    warnings.showwarning = show
