"""Flower's SuperNode, with two differences: what answers messages starts with it, and it looks for the next one soon.

Flower looks every three seconds, which is most of a round where training takes less. A node that has had nothing to do
for half a minute looks as seldom as that.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

from fedskew.deploy import flower_patches

# Seconds between two looks: at least, and as a share of the time since the last message
_LEAST, _SHARE = 0.1, 0.1


class PromptTime:
    """Stands for the module ``time`` in Flower's loop of a node."""

    def __init__(self) -> None:
        self.busy = time.monotonic()  # when a message was last at work

    def sleep(self, seconds: float) -> None:
        """Wait, for ``seconds`` at most: half a second means that a message is at work, more that there is none."""
        now = time.monotonic()
        if seconds < 1:
            self.busy = now
        time.sleep(min(seconds, max(_LEAST, _SHARE * (now - self.busy))))


def _start_answering() -> "subprocess.Popen[bytes]":
    """Start what answers messages; it ends with this process."""
    options = argparse.ArgumentParser()
    options.add_argument("--port")
    options.add_argument("--superexec-auth-secret-file", dest="secret")
    given, _ = options.parse_known_args()
    command = [sys.executable, "-m", "fedskew.deploy.app_processes", "--insecure"]
    command += ["--runtime-api-address", f"127.0.0.1:{given.port}"]
    command += ["--superexec-auth-secret-file", given.secret]
    command += ["--parent-pid", str(os.getpid())]
    return subprocess.Popen(command)


def _end_with(answering: "subprocess.Popen[bytes]") -> None:
    """End this process if the one that answers messages has ended: whoever restarts nodes shall notice."""
    status = answering.wait()
    print(
        f"what answers messages has ended (status {status}), and so does this node",
        file=sys.stderr,
    )
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run ``flower-supernode`` at that pace."""
    from flwr.supernode.cli import flower_supernode

    flower_patches.log_plainly()
    threading.Thread(target=_end_with, args=(_start_answering(),), daemon=True).start()
    flower_patches.look_again_soon()
    flower_patches.look_for_messages_at(PromptTime())
    flower_patches.connect_in_time()
    flower_supernode()


if __name__ == "__main__":
    main()
