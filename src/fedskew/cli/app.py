"""The entry point of the command line: the commands, their errors and the exit codes."""

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fedskew import __version__
from fedskew.cli import (
    advise_command,
    atlas_command,
    compare_command,
    data_commands,
    deploy_command,
    doctor_command,
    export_command,
    keys_command,
    listing,
    measure_command,
    merge_command,
    node_command,
    paper_command,
    predict_command,
    report_command,
    resume_command,
    run_command,
    server_command,
    split_command,
    status_command,
)
from fedskew.cli.console import complain, system_error_text, usage_error_text
from fedskew.core.config import workers_of_torchrun
from fedskew.core.errors import BudgetSpentError, FedskewError
from fedskew.core.plugins import import_modules

if TYPE_CHECKING:
    from fedskew.server.server import Server

# Newer versions of Typer have their own copy of Click: take its exception class, not Click's.
_UsageError: Any = typer.BadParameter.__bases__[0]


class _StoppedError(Exception):
    """Ctrl-C or a signal; the message says how to resume, and ``code`` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Commands(TyperGroup):
    """The group of commands; it keeps the message of a KeyboardInterrupt, which Typer would discard."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn a KeyboardInterrupt into an error with its message and exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            raise _StoppedError(
                str(stopped) or "interrupted", getattr(stopped, "code", 130)
            ) from None


app = typer.Typer(
    cls=_Commands,
    help="Federated learning on heterogeneous (non-IID) clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; an error of the user gives one line on stderr and exit code 2."""
    warnings.formatwarning = lambda message, *where: f"fedskew: warning: {message}\n"
    try:
        code = _run_the_command()
    except _StoppedError as stopped:
        code = complain(str(stopped), stopped.code)
    except _UsageError as problem:
        code = complain(usage_error_text(problem))
    except BudgetSpentError as spent:
        code = complain(str(spent), spent.code)
    except FedskewError as problem:
        code = complain(str(problem))
    except BrokenPipeError:  # the reader of the output has closed the pipe, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as problem:  # such as a file without permission, a failing disk
        code = complain(system_error_text(problem))
    if not isinstance(code, int):
        code = 0
    sys.exit(code)


def _run_the_command() -> Any:
    """Run the command; of several processes that torchrun has started, only the first runs it, with their help."""
    if workers_of_torchrun() is None:
        return app(standalone_mode=False)
    from fedskew.runs.execute import server_of
    from fedskew.runs.worker_processes import join_torchrun, leave_torchrun

    def imported_server(config: Mapping[str, Any]) -> "Server":
        given = typer.main.get_command(app).make_context("fedskew", sys.argv[1:])
        import_modules(given.params["modules"] or ())
        return server_of(config)

    if not join_torchrun(imported_server):
        return 0
    try:
        return app(standalone_mode=False)
    finally:
        leave_torchrun()


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Python file, or name of a module, that registers methods, skews, models or data of your own; may be "
            "repeated. Importing runs its code: only import what you trust.",
        ),
    ] = None,
) -> None:
    """Federated learning on heterogeneous (non-IID) clients."""
    import_modules(modules or ())


for module in (
    run_command,
    compare_command,
    resume_command,
    merge_command,
    status_command,
    report_command,
    predict_command,
    export_command,
    split_command,
    measure_command,
    advise_command,
    atlas_command,
    paper_command,
    listing,
    data_commands,
    doctor_command,
    deploy_command,
    keys_command,
    server_command,
    node_command,
):
    module.add_to(app)
