"""What fedskew changes in Flower, or relies on, is still what it was when it was read: one hash for each.

When one differs, read what Flower changed, see that ``flower_patches`` still does what it says, and note
the new hash beside the old one.
"""

import hashlib
import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.deploy import flower_patches

pytest.importorskip("flwr", reason="needs fedskew[flower]")

# A module and a name in it -> the first 12 digits of the SHA-256 of its source, by the versions that were read
READ: dict[tuple[str, str], set[str]] = {
    ("flwr.supercore.inflatable.inflatable_utils", "pull_objects"): {"31bb2de46b45"},
    ("flwr.supercore.inflatable.inflatable_utils", "pull_and_inflate_object_from_tree"): {
        "139811483a15"
    },
    ("flwr.superlink.grid.http_grid", "HttpGrid.__init__"): {"b95bb1aab723"},
    ("flwr.supercore.retry", "make_simple_http_retry_invoker"): {"49e12326a4b1"},
    ("flwr.superlink.extensions", "get_middleware"): {"37012f4eb789"},
    ("flwr.superlink.extensions", "configure_app"): {"96744a73cb71"},
    ("flwr.superlink.servicer.fleet.fleet_handlers", "push_messages"): {"70c2fe927c66"},
    ("flwr.superlink.servicer.fleet.fleet_handlers", "activate_node"): {"0370edbbeb92"},
    ("flwr.superlink.routers.fleet.node_auth", "authenticate_node"): {"f8e66372d61b"},
    ("flwr.superlink.cli.flower_superlink", "SuperLinkLifespan"): {"a2c1f2f11725"},
    ("flwr.superlink.cli.flower_superlink", "_get_superexec_command"): {"5d60007f01d1"},
    ("flwr.superlink.cli.flower_superlink", "flower_superlink"): {"398ce9c85755"},
    ("flwr.supercore.superexec.run_superexec", "run_superexec"): {"d11f4e7fbc8f", "91e7a33c5b89"},
    ("flwr.supercore.superexec.executor.subprocess_executor", "SubprocessExecutor"): {
        "9c58435eb28c"
    },
    ("flwr.supercore.superexec.executor.types", "ExecutionSpec"): {"a52aad6399c9"},
    ("flwr.superlink.cli.flwr_serverapp", "flwr_serverapp"): {"b274501e3b1e"},
    ("flwr.superlink.runtime.run_serverapp", "run_serverapp"): {"2cf00cc3bc7e"},
    ("flwr.supernode.runtime.run_clientapp", "run_clientapp"): {"6ce09559f3a2"},
    ("flwr.supernode.start_client_internal", "start_client_internal"): {"9e89a6eb68fb"},
    ("flwr.supernode.start_client_internal", "_push_messages"): {"00bb86faffde"},
    ("flwr.supernode.fleet_http_client", "FleetHttpClient"): {"9f33ca6d39a8"},
    ("flwr.supernode.fleet_http_connection", "http_request_response"): {"b80ca36779c2"},
    ("flwr.supercore.error", "FlowerError"): {"5791034e4609"},
    ("flwr.supercore.logger", "ConsoleHandler"): {"d137efacc3c4"},
    ("flwr.supercore.logger", "mirror_output_to_queue"): {"f82849372ef7"},
    ("flwr.supercore.http_logging", "UTCFormatter"): {"5abb210d0146"},
    ("flwr.supercore.http_logging", "get_uvicorn_log_config"): {"3633a4dbbef5"},
}


@pytest.mark.parametrize(("module", "name"), READ)
def test_flower_is_what_was_read(module: str, name: str):
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    source = inspect.getsource(found)
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    assert digest in READ[module, name], f"Flower has changed {module}.{name}: {digest}"


def test_numbers_that_are_set_are_there():
    from flwr.supercore import sql_mixin
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.retry import make_simple_http_retry_invoker

    for function in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(inflatable_utils, function).__kwdefaults__
        assert {"initial_backoff", "max_time"} <= defaults.keys()
    assert {"cache_size", "mmap_size"} <= dict(sql_mixin.SQLITE_PRAGMAS).keys()
    invoker = make_simple_http_retry_invoker()
    assert callable(invoker.should_giveup)
    assert hasattr(invoker, "max_time")


class Refusing:
    """A server that refuses a node with these reasons, one after the other, and then lets it in."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)
        self.slept: list[float] = []

    def activate(self, client: Any, request: Any) -> str:
        import httpx

        if not self.reasons:
            return "connected"
        said = {
            "code": 2004,
            "detail": "Failed to activate SuperNode.",
            "extra": self.reasons.pop(0),
        }
        response = httpx.Response(
            412, text=json.dumps(said), request=httpx.Request("POST", "http://h")
        )
        raise httpx.HTTPStatusError("412", request=response.request, response=response)


def connect(server: Refusing, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """Connect a node to a server, and return what comes of it and what the node says meanwhile."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    said: list[str] = []
    monkeypatch.setattr(FleetHttpClient, "ActivateNode", server.activate)
    monkeypatch.setattr(flower_patches.time, "sleep", server.slept.append)
    flower_patches.connect_in_time(said.append)
    return FleetHttpClient.ActivateNode(SimpleNamespace(), SimpleNamespace()), said


def test_a_node_that_restarts_early_waits(monkeypatch: pytest.MonkeyPatch):
    server = Refusing("in use for 17")
    connected, said = connect(server, monkeypatch)
    assert connected == "connected"
    assert server.slept == [19.0]
    assert len(said) == 1
    assert "19 s more" in said[0]


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (["in use for 17", "in use for 55"], "another process is connected with this key"),
        (["unknown key"], "supernode register"),
    ],
)
def test_a_node_says_why_it_is_refused(
    reasons: list[str], told: str, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(FedskewError, match=told):
        connect(Refusing(*reasons), monkeypatch)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "<class 'OSError'>:<'[Errno 28] No space left on device: '/srv/a''>",
            "disk of the node is full",
        ),
        ("<class 'KeyError'>:<'Jane Roe'>", "which is told in its log"),
    ],
)
def test_words_of_errors_stay_at_the_node(reason: str, told: str, monkeypatch: pytest.MonkeyPatch):
    running: Any = import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.setattr(running, "Error", running.Error)
    flower_patches.keep_errors_here()
    error = running.Error(code=2, reason=reason)
    assert error.code == 2
    assert told in error.reason
    assert "srv" not in error.reason
    assert "Jane" not in error.reason


_LOGGING = """
import warnings
from logging import ERROR, INFO
from fedskew.core.errors import FedskewError
from fedskew.deploy import flower_patches
from flwr.supercore import log

flower_patches.log_plainly()
log(INFO, "")
log(INFO, "[RUN 1]")
warnings.warn("two of three")
for error in (FedskewError("lower lr"), ValueError("unexpected")):
    try:
        raise error
    except Exception as problem:
        log(ERROR, "it failed: %s", problem, exc_info=problem)
"""


def test_logs_have_one_format(tmp_path: Path):
    around = {**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", _LOGGING], env=around, cwd=tmp_path, capture_output=True, text=True
    )
    told = done.stdout + done.stderr
    assert "\x1b" not in told
    lines = told.splitlines()
    assert [line.split(" ", 1)[1] for line in lines[:4]] == [
        "INFO [flwr] [RUN 1]",
        "WARNING [flwr] two of three",
        "ERROR [flwr] it failed: lower lr",
        "ERROR [flwr] it failed: unexpected",
    ]
    assert lines[0][10] == "T"
    assert lines[0].split(" ")[0].endswith("Z")
    assert lines[4].startswith("Traceback")  # of an error that nobody has expected
