"""Flower's SuperExec, with two differences: the process of an app is forked with everything imported, and ends in time.

Flower starts Python for every message to a node and for every run, which imports PyTorch again: seconds of computing
for what takes milliseconds. Here each still has a process of its own. All of them end at once when the server or the
node that they belong to is killed.
"""

import argparse
import multiprocessing
import os
import select
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver
from queue import Queue
from typing import TYPE_CHECKING

from fedskew.deploy import flower_patches

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor.types import ExecutionSpec

# Seconds after which the process of a message gives up, as the message will not come any more: the server has gone
_PATIENCE = 600.0
_LOOKS = 0.2  # seconds between two looks whether a process is there, where it cannot be waited for


def main() -> None:
    """Run ``flower-superexec`` with processes that are forked."""
    from flwr.supercore.cli import flower_superexec

    flower_patches.log_plainly()
    threading.Thread(target=_end_with, args=(_parent(),), daemon=True).start()
    context = multiprocessing.get_context("forkserver")
    if sys.platform == "linux":  # on macOS, libraries of the system do not survive a fork
        context.set_forkserver_preload(["fedskew.deploy.app_imports"])
    forkserver.ensure_running()

    def launch(spec: "ExecutionSpec") -> None:
        # A daemon is asked to end when this process ends in the ordinary way.
        context.Process(target=run_app, args=(spec,), daemon=True).start()

    flower_patches.start_apps_by(launch)
    flower_superexec()


def run_app(spec: "ExecutionSpec") -> None:
    """Run the app of a task: a run, or the answer of a node to one message."""
    from flwr.supercore.constant import TaskType

    threading.Thread(target=_end_with_parent, daemon=True).start()
    flower_patches.log_plainly()
    flower_patches.look_again_soon()
    if spec.task_type == TaskType.SERVER_APP:
        _run(spec)
    else:
        _answer(spec)


def _run(spec: "ExecutionSpec") -> None:
    """Do what ``flwr-serverapp`` does: one run, whose output the server keeps."""
    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.superlink.runtime import run_serverapp

    output: Queue[str | None] = Queue()
    mirror_output_to_queue(output)
    run_serverapp(
        runtime_api_address=spec.runtime_api_address,
        log_queue=output,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(
            spec.root_certificates_path, spec.insecure
        ),
        parent_pid=spec.parent_pid,
        runtime_dependency_install=False,
    )


def _answer(spec: "ExecutionSpec") -> None:
    """Do what ``flwr-clientapp`` does: answer one message."""
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    flower_patches.wait_for_message(_PATIENCE)
    flower_patches.keep_errors_here()
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


def _parent() -> int:
    """Return the process that this one belongs to: a server or a node."""
    options = argparse.ArgumentParser()
    options.add_argument("--parent-pid", type=int, required=True)
    given, _ = options.parse_known_args()
    pid: int = given.parent_pid
    return pid


def _end_with(parent: int) -> None:
    """End this process as soon as that one has ended, also where nobody asks for its exit status."""
    with suppress(ProcessLookupError):
        if sys.platform == "linux":
            select.select([os.pidfd_open(parent)], [], [])
        else:
            while True:
                os.kill(parent, 0)
                time.sleep(_LOOKS)
    # After a moment for an orderly end, which Flower begins where the end of the parent is one
    time.sleep(_LOOKS)
    os._exit(1)


if __name__ == "__main__":
    main()
