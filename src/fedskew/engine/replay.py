"""Parts of a round on a GPU, captured once as CUDA graphs and replayed: a graph is launched like one kernel."""

import gc
import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class Replay:
    """Captures each part when it first runs, and replays it from then on.

    Args:
        moving: returns the tensors that parts change in place; they are restored after the trial run before a capture
    """

    def __init__(self, moving: Callable[[], list[Tensor]]) -> None:
        self._moving = moving
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.refused: dict[Hashable, str] = {}  # parts that cannot be captured, and why

    def __call__(self, name: Hashable, part: Callable[[], None]) -> None:
        """Run a part: replay its graph, or run it as it is if it cannot be captured."""
        if name in self._graphs:
            self._graphs[name].replay()
        elif name in self.refused:
            part()
        else:
            self._capture(name, part)

    def _capture(self, name: Hashable, part: Callable[[], None]) -> None:
        moving = self._moving()
        before = [value.clone() for value in moving]
        random = torch.cuda.get_rng_state()
        # Libraries allocate and choose on their first call, which must not happen during a capture.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            part()
        torch.cuda.current_stream().wait_stream(side)
        for value, old in zip(moving, before, strict=True):
            value.copy_(old)
        torch.cuda.set_rng_state(random)
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # to free an old graph during a capture is an error
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                with torch.cuda.graph(graph, pool=self._pool):
                    part()
        except RuntimeError as problem:
            self.refused[name] = str(problem).splitlines()[0]
            torch.cuda.synchronize()
            # The old one is left in the middle of a capture
            self._pool = torch.cuda.graph_pool_handle()
            part()
            return
        finally:
            if collects:
                gc.enable()
        self._graphs[name] = graph
        graph.replay()
