"""The class of all commands: an option may be given once."""

from collections import Counter
from typing import Any

from typer.core import TyperCommand

from fedskew.core.errors import FedskewError


class Once(TyperCommand):
    """A command that refuses an option given twice; Click would silently take the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise an error for an option that is given more than once."""
        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for option, count in given.items():
            if count > 1 and option.param_type_name == "option" and not option.multiple:
                raise FedskewError(
                    f"{option.opts[0]} is given {count} times: give it once (see {ctx.command_path} --help)"
                )
        return super().parse_args(ctx, args)
