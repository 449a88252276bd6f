"""The command line: click's commands, each built from its function on demand."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from trine.cli.colour import has_colour
from trine.cli.commands import GROUPS, below, find
from trine.cli.live import answer_live
from trine.cli.options import VALUES_ELSEWHERE
from trine.cli.output import reports_errors
from trine.cli.parameters import (
    LIVE,
    REPORT,
    CommandParameter,
    all_parameters,
    live_parameters,
    report_parameters,
    runner,
    varied_parameters,
    words_of,
)
from trine.cli.report_target import ReportTarget
from trine.cli.reports import answer_reported, repeated_line
from trine.common import not_modelled as absent
from trine.common._version import __version__
from trine.common.not_modelled import not_modelled
from trine.common.units import MAX_INT64, finite_number, whole_number
from trine.errors import MAX_LINE, InputError, nearest, one_line


def suggestion(words: Sequence[str], valid: Collection[str]) -> str:
    """Return "; try: " with the command line in trine's words, if it parses and fits into a message; else ""."""
    from trine.cli.corrections import correct

    better = correct(words, valid)
    if better is None or len(better) > MAX_LINE // 2 or not parses(shlex.split(better)[1:]):
        return ""
    return f"; try: {better}"


def parses(words: Sequence[str]) -> bool:
    """Return whether a command line parses: its command, options, numbers, listed values and model."""
    for count in (2, 1):
        entry = find(" ".join(words[:count]))
        if entry is not None:
            break
    else:
        return False
    function = entry.function()
    try:
        with single(function, entry.words).make_context(entry.words, list(words[count:])) as ctx:
            typed = ctx.params
    except (click.UsageError, click.exceptions.Exit):
        return False
    for parameter in all_parameters(function):
        given = typed.get(parameter.name)
        values = given if isinstance(given, list | tuple) else [given]
        texts = [each for each in values if isinstance(each, str)]
        has_list = re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", parameter.option.metavar or "") is not None
        if has_list and parameter.option.values is None and not set(texts) <= set(parameter.values()):
            return False
        if any(text.startswith("model:") and not _is_model(text) for text in texts):
            return False
    return True


def _is_model(text: str) -> bool:
    """Return whether trine can write ``model:NAME,key=value``."""
    from trine.workload.synthesis.model import from_text

    try:
        from_text(text)
    except InputError:
        return False
    return True


_SETTINGS = {"help_option_names": ["-h", "--help"]}


class NumberText(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.5
    """A whole or decimal number that 64 bits hold."""

    def __init__(self, kind: type) -> None:
        self.kind, self.name = kind, "a whole number" if kind is int else "a number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises UsageError with the option and the text."""
        text = str(value).strip().removeprefix("+")
        number = whole_number(text, -MAX_INT64) if self.kind is int else finite_number(text)
        if number is None:
            option = "" if param is None else f"{'/'.join(param.opts)} "
            raise click.UsageError(f"{option}must be {self.name}, got {value!r:.80}", ctx)
        return number


class TrineGroup(click.Group):
    """All commands, or the commands of a group such as ``trine cluster``. Usage errors take one line, as all errors."""

    def __init__(self, words: str = "") -> None:
        super().__init__(words or "trine", context_settings=_SETTINGS)
        self.words = words

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of use."""
        return [name for name, _, _ in below(self.words)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build a command, or return None for an unknown name."""
        command = find(f"{self.words} {cmd_name}".strip())
        if command is not None:
            return single(command.function(), command.words)
        return TrineGroup(cmd_name) if cmd_name in GROUPS and not self.words else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that a line begins with. Raises UsageError with the nearest name."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            reason = not_modelled(absent.COMMANDS, args[0])
            raise click.UsageError(reason or f"No such command {args[0]!r}{nearest(args[0], names)}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the page of the group, from the table of commands."""
        from trine.cli.help import group_page

        formatter.write(group_page(self.words, has_colour(sys.stdout)))

    def main(  # type: ignore[override]  # the options that trine and its tests give
        self, args: Sequence[str] | None = None, prog_name: str | None = "trine", **extra: Any
    ) -> Any:
        """Run a command line; raises SystemExit."""
        words = sys.argv[1:] if args is None else list(args)
        spread = []
        for word in words:
            spread.extend(word.split("=", 1) if word.startswith("--") else [word])
        wrong = next((pair for pair in pairwise(spread) if pair in VALUES_ELSEWHERE), None)
        if wrong is not None:
            hint = suggestion(words, _named(spread)) or f"; trine writes it as {wrong[0]} {VALUES_ELSEWHERE[wrong]}"
            message = f"{wrong[0]} has no value {wrong[1]!r}{hint}"
            _refuse(click.UsageError(message), message)
        try:
            code = super().main(words, prog_name, **{**extra, "standalone_mode": False})
        except click.NoSuchOption as error:
            options = _options(error.ctx)
            _refuse(error, _unknown_option(error.option_name, words, options))
        except click.exceptions.NoArgsIsHelpError as error:
            print(error.format_message(), file=sys.stderr, flush=True)
            sys.exit(2)
        except click.UsageError as error:
            _refuse(error, error.format_message())
        except click.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _options(ctx: click.Context | None) -> list[str]:
    if ctx is None:
        return []
    return [name for each in ctx.command.params for name in (*each.opts, *each.secondary_opts)]


def _named(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("--")]


def _unknown_option(name: str, words: Sequence[str], options: Sequence[str]) -> str:
    """Return the message about an option that a command does not have, with the command line that works."""
    value = next((after.partition("=")[2] for after in words if after.startswith(f"{name}=")), "")
    value = value or next((after for word, after in pairwise(words) if word == name), "")
    from trine.cli.corrections import OPTIONS, own_form

    is_precision = "dtype" in (OPTIONS.get(name.removeprefix("--")) or "")
    reason = not_modelled(absent.OPTIONS, name) or (not_modelled(absent.VALUES, value) if is_precision else None)
    hint = suggestion(words, options)
    if reason is not None and not hint:
        return f"No such option: {name}: {reason}"
    form = own_form(name.removeprefix("--"), options) if not hint else None
    if form is not None and (form.startswith("workload") or form.split()[0] in options):
        form = form.replace("workload", "model:NAME").replace("{}", "VALUE")
        hint = f"; trine writes it as {form}"
    return f"No such option: {name}{hint or nearest(name, options, is_listed=True)}"


def _refuse(error: click.UsageError, message: str) -> None:
    """Print the error in a command line and the command for help, then exit with code 2."""
    help_ = "" if error.ctx is None else f" ({error.ctx.command_path} --help)"
    text = (message if message.endswith("...") else message.removesuffix(".")) + help_
    if len(text) > MAX_LINE - len("error: "):
        text = message.partition("; try: ")[0].rstrip(".") + help_  # half a command is no help
    print(f"error: {one_line(text)}", file=sys.stderr, flush=True)
    sys.exit(2)


def make_app() -> TrineGroup:
    """Return the group of all ``trine`` commands, without importing their modules."""
    app = TrineGroup()
    for name, answer in (("--version", _version), ("--show-completion", _completion)):
        app.params.append(click.Option([name], is_flag=True, is_eager=True, expose_value=False, callback=answer))
    return app


def _version(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"trine {__version__}")
        ctx.exit()


def _completion(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    """Print the shell code that enables completion of command lines."""
    if is_asked:
        shell = PurePath(os.environ.get("SHELL", "")).name
        completion = get_completion_class(shell)
        if completion is None:
            raise click.UsageError(f"SHELL is {shell!r}: completion knows bash, zsh and fish", ctx)
        click.echo(completion(ctx.command, {}, "trine", "_TRINE_COMPLETE").source())
        ctx.exit()


#: Key of the typed words in a context of click.
_TYPED = "trine.typed"


class _Page(click.Command):
    """A command with a custom help page in panels."""

    page: Callable[..., str]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of a command line. Raises UsageError for an option with one value that is given twice."""
        ctx.meta[_TYPED] = tuple(args)
        if not ctx.resilient_parsing:
            opts = [each for each in self.make_parser(ctx).parse_args(list(args))[2] if isinstance(each, click.Option)]
            repeated = next((each for each in opts if not each.multiple and opts.count(each) > 1), None)
            if repeated is not None:
                raise click.UsageError(f"{'/'.join((*repeated.opts, *repeated.secondary_opts))} is given twice", ctx)
            self._refuse_missing_value(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_missing_value(self, ctx: click.Context, args: list[str]) -> None:
        """Raise UsageError if another option follows an option that takes a value; --A=--B passes such a value."""
        names = {name for each in self.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
        with_value = set()
        for each in self.params:
            if isinstance(each, click.Option) and not each.is_flag:
                with_value.update(each.opts)
        for word, after in pairwise(args):
            if word == "--":
                return
            if word in with_value and after.partition("=")[0] in names:
                raise click.UsageError(f"{word} needs a value, but the next word is the option {after}", ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's help page."""
        formatter.write(self.page(has_colour(sys.stdout)))


def single(function: Callable[..., Any], words: str, program: str = "trine") -> click.Command:
    """Build a click command with the name ``words`` from one function. Only trine's commands vary their options."""
    parameters = all_parameters(function)
    names = words_of(function)
    run = runner(function)
    varied = varied_parameters(words, parameters) if program == "trine" else ()
    reported = report_parameters(words, parameters)
    live = live_parameters(words)

    def invoke(**typed: Any) -> None:
        vary = {}
        for each in varied:
            if (value := typed.pop(each.name)) not in (None, ()):
                vary[each.name] = value
        path = typed.pop(REPORT.name) if reported else None
        is_live = typed.pop(LIVE.name) if live else False
        command: Callable[..., Any] = run
        options = {each.name: _value_or_default(each, typed[each.name]) for each in parameters}
        if vary:
            from trine.cli.vary import answer_varied

            command, options = partial(answer_varied, words, parameters, typed, vary), {}
        given = click.get_current_context().meta[_TYPED]
        if is_live:
            command = partial(answer_live, words, given, command)
        if path is not None:
            line = repeated_line(words, given)
            command = partial(answer_reported, ReportTarget(path, line), command)
        reports_errors(command, names)(**options)

    every = (*parameters, *reported, *live, *varied)
    page = _Page(words.split()[-1], callback=invoke, params=[_parameter(each) for each in every],
                 context_settings=_SETTINGS)  # fmt: skip
    page.page = partial(_help_page, words, function, program=program)

    def show_all(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
        if is_asked:
            click.echo(page.page(has_colour(sys.stdout), is_all=True))
            ctx.exit()

    page.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show_all))
    return page


def _help_page(
    words: str, function: Callable[..., Any], colour: bool = False, is_all: bool = False, program: str = "trine"
) -> str:
    """Return the help page of a command, see :func:`trine.cli.help.command_page`."""
    from trine.cli.help import command_page

    return command_page(words, function, colour, is_all, program)


def _value_or_default(parameter: CommandParameter, typed: Any) -> Any:
    """Return the value from the command line, or else the default."""
    typed = list(typed) if isinstance(typed, tuple) else typed
    return parameter.default if typed is None or typed == [] else typed


def _parameter(entry: CommandParameter) -> click.Parameter:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in entry.values() if value.startswith(incomplete)]

    kind = NumberText(entry.kind) if entry.kind in (int, float) else click.STRING
    if entry.option.is_argument:
        count = -1 if entry.is_many else 1
        return click.Argument([entry.name], type=kind, nargs=count, required=entry.is_required, shell_complete=complete)
    if entry.kind is bool:
        return click.Option([*entry.names, entry.name], is_flag=True, default=None, help=entry.option.help)
    return click.Option([*entry.names, entry.name], type=kind, multiple=entry.is_many, required=entry.is_required,
                        metavar=entry.option.metavar, help=entry.option.help, shell_complete=complete)  # fmt: skip
