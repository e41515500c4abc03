"""Flower's SuperExec of a node, with one difference: the process of a message is forked, with everything imported.

Flower starts Python for every message, which imports PyTorch again: seconds of computing for what takes milliseconds.
Here every message still has a process of its own, which ends with it.
"""

import multiprocessing
import os
import sys
import threading
from multiprocessing import forkserver
from typing import TYPE_CHECKING

from fedskew.deploy.flower_grid import look_again_soon

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

# Seconds after which a process gives up, as its message will not come any more: the server has gone
_PATIENCE = 600.0


def main() -> None:
    """Run ``flower-superexec`` with processes that are forked."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    context = multiprocessing.get_context("forkserver")
    if sys.platform == "linux":  # on macOS, libraries of the system do not survive a fork
        context.set_forkserver_preload(["fedskew.deploy.message_imports"])
    forkserver.ensure_running()

    class Forked(SubprocessExecutor):
        def launch(self, spec: "ExecutionSpec") -> "LaunchResult":
            context.Process(target=_answer, args=(spec,)).start()
            return LaunchResult.accepted()

    run_superexec.get_executor = lambda *given, **named: Forked()  # type: ignore[attr-defined]
    flower_superexec()


def _answer(spec: "ExecutionSpec") -> None:
    """Run ``flwr-clientapp`` for one message."""
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    threading.Thread(target=_end_with_parent, daemon=True).start()
    look_again_soon()
    pull_and_inflate_object_from_tree.__kwdefaults__["max_time"] = _PATIENCE  # type: ignore[index]
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        parent_pid=spec.parent_pid,
    )


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, whatever it is waiting for."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


if __name__ == "__main__":
    main()
