"""The Typer application: commands are built from their functions when they are asked for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from trine._version import __version__
from trine.cli.commands import ABOUT, GROUPS, Command, below, find
from trine.cli.help import command_page, group_page, has_colour
from trine.cli.output import reports_errors
from trine.cli.parameters import CommandParameter, all_parameters, runner, words_of
from trine.errors import one_line

#: What typer raises for an unknown option or a value that is none: it names the command.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_SETTINGS = {"help_option_names": ["-h", "--help"]}


def make_app() -> typer.Typer:
    """Every command of ``trine``, none of them imported yet."""
    app = typer.Typer(
        name="trine", cls=TrineGroup, help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False,
        rich_markup_mode=None, context_settings=_SETTINGS,
    )  # fmt: skip

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        pass

    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trine {__version__}")
        raise typer.Exit


class LazyCommands(MutableMapping[str, Any]):
    """The commands of a group by name, in the order of use; each is built when it is asked for."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._names = [name for name, _, _ in below(group)]
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._built:
            words = f"{self._group} {name}".strip()
            command = find(words)
            self._built[name] = _group(name) if command is None else build(command)
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("the commands of trine are those of trine.cli.commands")

    def __delitem__(self, name: str) -> None:
        raise TypeError("the commands of trine are those of trine.cli.commands")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class TrineGroup(TyperGroup):
    """A group of commands whose errors of usage are one line, as all errors are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        name = settings.get("name") or ""
        self.words = "" if name not in GROUPS else name
        self.commands = LazyCommands(self.words)

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of use."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The page of the group, from the table of commands."""
        formatter.write(group_page(self.words, has_colour(sys.stdout)))

    def main(  # type: ignore[override]  # the options that trine and its tests give
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line."""
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            if not standalone_mode:
                return code
        except _UsageError as error:
            if not standalone_mode:
                raise
            if "Help" in type(error).__name__:  # a group without a command: its message is the help
                print(error, file=sys.stderr, flush=True)
                sys.exit(2)
            print(f"error: {_said(error)}", file=sys.stderr, flush=True)
            sys.exit(2)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _said(error: Any) -> str:
    """The message, and where help is."""
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    help_ = f" ({command} --help)" if command else ""
    return one_line(_message(error).rstrip(".") + help_)


def _message(error: Any) -> str:
    """The message; of a value that is no number also the value, which typer's own words leave out."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    wanted = {"int_parsing": "a whole number", "float_parsing": "a number"}.get(found[0]["type"]) if found else None
    if wanted is None or not getattr(error, "param", None):
        return str(error.format_message())
    return f"{'/'.join(error.param.opts)} must be {wanted}, got {str(found[0]['input'])!r:.80}"


def _group(name: str) -> Any:
    """A group below trine, such as ``trine cluster``."""
    app = typer.Typer(
        name=name, cls=TrineGroup, help=GROUPS[name][1], no_args_is_help=True, rich_markup_mode=None,
        add_completion=False,
    )  # fmt: skip
    app.callback()(lambda: None)
    return typer.main.get_group(app)


def build(command: Command) -> Any:
    """A command as Typer runs it."""
    return single(command.function(), command.words)


def single(function: Callable[..., Any], words: str) -> Any:
    """One function as a command of these words."""

    class Page(TyperCommand):
        """A command with a help page of its own panels."""

        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write(command_page(words, function, has_colour(sys.stdout)))

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(words.split()[-1], cls=Page, context_settings=_SETTINGS)(typed(function))
    return typer.main.get_command(app)


def typed(function: Callable[..., Any]) -> Callable[..., None]:
    """The command as a function that Typer understands: one parameter for each option."""
    run = reports_errors(runner(function), words_of(function))
    parameters = [_parameter(each) for each in all_parameters(function)]

    def called(**given: Any) -> None:
        run(**given)

    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(each: CommandParameter) -> inspect.Parameter:
    option, default = each.option, each.default
    complete = (lambda incomplete: _complete(each, incomplete)) if option.values or option.metavar else None
    if option.is_argument:
        info: Any = typer.Argument(help=option.help, metavar=option.metavar, autocompletion=complete)
    else:
        info = typer.Option(
            *each.names, help=option.help, metavar=option.metavar, rich_help_panel=option.panel,
            autocompletion=complete,
        )  # fmt: skip
    kind: Any = list.__class_getitem__(each.kind) if each.is_many else each.kind
    hint = kind if each.is_required or default is not None else kind | None
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if each.is_required else default,
        annotation=Annotated[hint, info],
    )  # fmt: skip


def _complete(parameter: CommandParameter, incomplete: str) -> list[str]:
    return [value for value in parameter.values() if value.startswith(incomplete)]
