"""torchrun's flags as options of a command, and a section of their own in its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.torchrun.flags import FLAGS, Flag
from holdfast.cli.values import FiniteNumber, WholeNumber

F = TypeVar("F", bound=Callable[..., Any])

_KINDS: dict[str, click.ParamType] = {  # type: ignore[type-arg,unused-ignore]
    "text": click.STRING,
    "whole": WholeNumber(min=0),
    "number": FiniteNumber(min=0),
}


def torchrun_options(command: F) -> F:
    """Add all flags of torchrun, as parameters of torchrun's names."""
    for flag in reversed(FLAGS):
        command = _option(flag)(command)
    return command


def flags_given(context: click.Context) -> frozenset[str]:
    """Return the parameters of torchrun's flags that the command line or the environment gives."""
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    return frozenset(flag.parameter for flag in FLAGS if context.get_parameter_source(flag.parameter) in given)


def _option(flag: Flag) -> Callable[[F], F]:
    names = [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else []), flag.parameter]
    variable = flag.variable if flag.reads_environment else None
    text = f"{flag.meaning} Here: {flag.instead}." if flag.instead else flag.meaning
    if flag.kind == "switch":
        return click.option(*names, is_flag=True, envvar=variable, help=text)
    kind = click.Choice(flag.choices) if flag.choices else _KINDS[flag.kind]
    shown = flag.name in ("nnodes", "nproc-per-node")
    return click.option(
        *names,
        type=kind,
        default=flag.default,
        envvar=variable,
        show_default=shown,
        metavar=flag.metavar or None,
        help=text,
    )


class RunCommand(click.Command):
    """A command whose help has Holdfast's own options first, and torchrun's after them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        theirs = {flag.parameter for flag in FLAGS}
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Options of torchrun": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections["Options of torchrun" if parameter.name in theirs else "Options"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
