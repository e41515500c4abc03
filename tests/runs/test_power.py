"""Power failures: a run on its own file system, which is shut down without warning, mounted again and resumed."""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.runs.folder import CLIENTS, FINAL_CLIENTS, MODEL, ROUNDS, RunFolder

BITS = (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL)
# Ioctl of ext4: stop at once, and what is only in memory is lost
SHUTDOWN, NO_FLUSH = 0x8004587D, 2
COMMAND = (
    "--model tabular:hidden=16 --norm local --algorithm scaffold --per-round 4 --clients 6 --rounds 40 "
    "--checkpoint-every 2"
)


class Disk:
    """An ext4 file system in a file."""

    def __init__(self, image: Path, at: Path) -> None:
        self.image, self.at = image, at
        with image.open("wb") as file:
            file.truncate(64 << 20)
        at.mkdir()
        self._call("mkfs.ext4", "-q", "-F", str(image))
        self.mount()

    def _call(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    def mount(self) -> None:
        self._call("mount", "-o", "loop", str(self.image), str(self.at))

    def unmount(self) -> None:
        self._call("umount", str(self.at))

    def cut(self) -> None:
        """Shut the file system down at once."""
        file = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(file, SHUTDOWN, struct.pack("I", NO_FLUSH))
        finally:
            os.close(file)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or not all(
        shutil.which(tool) for tool in ("mkfs.ext4", "mount", "umount")
    ):
        pytest.skip("needs root and mkfs.ext4 to mount a file system of its own")
    try:
        made = Disk(tmp_path / "disk.img", tmp_path / "disk")
    except (subprocess.CalledProcessError, OSError) as problem:
        pytest.skip(f"cannot mount a file system here: {problem}")
    try:
        yield made
    finally:
        subprocess.run(["umount", str(made.at)], check=False, capture_output=True)


def fedskew(*arguments: str) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "fedskew", *arguments], **pipes)  # type: ignore[call-overload,no-any-return]


def lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("never cut") / "run"
    with fedskew("run", *COMMAND.split(), "--folder", str(folder)) as process:
        assert process.wait() == 0, process.stderr.read()  # type: ignore[union-attr]
    return {name: (folder / name).read_bytes() for name in BITS}


@pytest.mark.parametrize("moment", [3, 14, 33])
def test_a_power_cut_loses_at_most_the_rounds_since_the_last_checkpoint(
    disk: Disk, expected: dict[str, bytes], moment: int
):
    folder = disk.at / "run"
    with fedskew("run", *COMMAND.split(), "--folder", str(folder)) as process:
        while lines(folder / ROUNDS) < moment:
            assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
            time.sleep(0.002)
        safe = max(RunFolder(folder).checkpoints.rounds(), default=0)
        disk.cut()
        process.kill()
        process.communicate()
    disk.unmount()
    disk.mount()
    if not folder.exists():
        assert safe == 0
        pytest.fail("the folder itself was synced before the first round")
    assert max(RunFolder(folder).checkpoints.rounds(), default=0) >= safe
    with fedskew("resume", str(folder)) as process:
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert {name: (folder / name).read_bytes() for name in BITS} == expected


def test_a_power_cut_right_after_the_end_loses_nothing(disk: Disk, expected: dict[str, bytes]):
    folder = disk.at / "run"
    with fedskew("run", *COMMAND.split(), "--folder", str(folder)) as process:
        assert process.wait() == 0
    disk.cut()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (folder / "new").write_bytes(b"")
    disk.unmount()
    disk.mount()
    assert {name: (folder / name).read_bytes() for name in BITS} == expected
    assert RunFolder(folder).finished
