"""The geometry of a convolution, and what follows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, padding and dilation of a convolution, and what follows it."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    pool: bool
    relu: bool

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the image after the convolution, before pooling."""
        sizes = zip(
            (height, width), self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        high, wide = (
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, gap in sizes
        )
        return high, wide
