"""The channel of a method: how many bytes a client sends for what the hook ``payload`` returns."""

from fedskew.core.trees import Tree, size_in_bytes


class Channel:
    """All tensors as they are; a compression derives from this class and counts what it would send."""

    def bytes(self, sent: Tree) -> int:
        """Return the size of one client's payload, with its buffers."""
        return size_in_bytes(sent)
