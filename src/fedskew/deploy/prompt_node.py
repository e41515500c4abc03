"""Flower's SuperNode, with one difference: it looks for the next message soon after it has answered one.

Flower looks every three seconds, which is most of a round where training takes less. A node that has had nothing to do
for half a minute looks as seldom as that.
"""

import time

_LEAST, _SHARE = 0.1, 0.1  # seconds between two looks: at least, and as a share of the time since the last message


class Pace:
    """Stands for the module ``time`` in Flower's loop of a node."""

    def __init__(self) -> None:
        self.busy = time.monotonic()  # when a message was last at work

    def sleep(self, seconds: float) -> None:
        """Wait, for ``seconds`` at most: half a second means that a message is at work, more that there is none."""
        now = time.monotonic()
        if seconds < 1:
            self.busy = now
        time.sleep(min(seconds, max(_LEAST, _SHARE * (now - self.busy))))


def main() -> None:
    """Run ``flower-supernode`` at that pace."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.time = Pace()  # type: ignore[assignment, attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
