"""Write the page of a run, of a comparison or of several runs, and the callback that writes it at the end of a run."""

from collections.abc import Sequence
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically
from fedskew.report.html_page import html_file
from fedskew.report.run_page import run_content
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import RunFolder
from fedskew.runs.run import Run, open_run, run_on_disk
from fedskew.runs.runner import only_warned
from fedskew.study.run_data import RunData


class PageWriter(Callback):
    """A callback that writes the page of a run into its folder; an error is only a warning, as the run is whole."""

    def on_run_end(self, run: Run) -> None:
        """Write the page."""
        if run.folder is None:
            return
        path = run.folder / on_disk.PAGE
        with only_warned(str(path)):
            disk = RunFolder(run.folder)
            written = run_on_disk(disk, disk.read_json(on_disk.SUMMARY))
            write_atomically(path, _page_of_run(RunData(written)))


def report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run, of a comparison, or of several runs; return its path.

    All folders are verified before anything is written.

    Args:
        folders: run folders, or the folder of a comparison
        out: the file, which several folders need; by default ``report.html`` in the folder
    """
    if out is None and len(folders) != 1:
        raise FedskewError(
            "several runs have no common folder: say where the page goes with --out FILE"
        )
    if not folders:
        raise FedskewError("a report needs a run: name its folder")
    place = out or folders[0] / on_disk.PAGE
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise FedskewError(f"--out {out} is not a file in an existing folder: give another")
    if len(folders) == 1 and not (folders[0] / on_disk.GROUP).is_file():
        content = _page_of_run(RunData(open_run(folders[0])))
    else:
        # Not needed for the page of a run, which every training writes
        from fedskew.report.comparison_page import comparison_page
        from fedskew.study.read_comparison import comparison

        content = comparison_page(comparison(folders))
    write_atomically(place, content)
    return place


def _page_of_run(run: RunData) -> bytes:
    """Return the page of one run."""
    return html_file(run_content(run))
