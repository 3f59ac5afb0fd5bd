"""A verb as a command: its parser and its help, made from the declarations of its options."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from shardmill.core.console import count
from shardmill.core.errors import UsageError
from shardmill.plan.options import GROUPS, OTHER, Declared, declared
from shardmill.plugins import Group, Verb, names

_KINDS: dict[Any, Any] = {int: click.INT, float: click.FLOAT}
# Options whose values are names that the door knows.
_COMPLETED: dict[str, Group] = {"engine": "engines", "format": "sources"}
# Options that every command has.
_SHORT, _LONG = "--help", "--help-all"


class VerbCommand(click.Command):
    """A command whose help shows examples, then options in groups: the common ones, or with --help-all every one."""

    def __init__(self, verb: Verb) -> None:
        self.verb = verb
        self.declared = [each for each in declared(verb.part("options")) if each.about.only in ("", "command")]
        super().__init__(
            verb.name.rpartition(" ")[2],
            params=[_parameter(each) for each in _in_order(self.declared)],
            callback=self._call,
            help=describe_verb(verb, "The same command resumes an interrupted run."),
            hidden=verb.hidden,
            short_help=verb.summary,
            context_settings={"help_option_names": [_SHORT]},
        )
        self.params.append(_help_all())

    def _call(self, **values: Any) -> None:
        from shardmill.run.request import make_request, start_task
        from shardmill.run.small_jobs import small_jobs_here

        request = make_request(self.verb, values, quiet=False)
        with small_jobs_here():
            result = (self.verb.part("start") or start_task)(request)
        if (show := self.verb.part("show")) is not None:
            show(request, result)
        elif self.verb.resumes:
            from shardmill.run.outcome import show_run

            show_run(request, result)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take each option with one value once: the second would replace the first silently."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        once = [p for p in order if isinstance(p, click.Option) and not (p.multiple or p.is_flag or p.count)]
        if again := next((p for i, p in enumerate(once) if p in once[:i]), None):
            raise UsageError(f"{again.opts[0]} is given twice.", hint="Give it once; a list is written with commas.")
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.verb.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.verb.examples))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole = bool(ctx.meta.get(_LONG))
        for title, records in grouped(self.declared, whole=whole).items():
            with formatter.section(title):
                formatter.write_dl(records)
        left = 0 if whole else sum(1 for each in self.declared if not _is_shown(each, whole=False))
        if left:
            formatter.write(f"\n{count(left, 'more option')}: shardmill {self.verb.name} {_LONG}\n")


def describe_verb(verb: Verb, resumes: str) -> str:
    """What the help of a verb begins with; `resumes` is said of one that resumes."""
    return "\n\n".join(filter(None, (f"{verb.summary}{f' {resumes}' if verb.resumes else ''}", verb.about)))


def grouped(options: list[Declared], *, whole: bool) -> dict[str, list[tuple[str, str]]]:
    """Flags and help of the options, by group in the order of the groups; `whole`, also the less common ones."""
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*GROUPS, OTHER)}
    for each in options:
        if _is_shown(each, whole=whole):
            title = "Arguments" if each.about.argument else each.about.group
            groups.setdefault(title, []).append((_usage(each), describe(each)))
    if whole:
        groups[OTHER].append((_SHORT, "Show the common options."))
    return {title: records for title, records in groups.items() if records}


def describe(each: Declared) -> str:
    """The help of an option, with its engine and its default."""
    engine = f"With --engine {each.about.engine.partition(',')[0]}: " if each.about.engine else ""
    text = f"{each.help[:1].lower()}{each.help[1:]}" if engine else each.help
    return f"{engine}{text}" + (f"  [default: {each.default}]" if each.default else "")


def _is_shown(each: Declared, *, whole: bool) -> bool:
    return whole or each.about.common or each.about.argument


def _usage(each: Declared) -> str:
    if each.about.argument:
        return each.about.metavar
    flags = ", ".join(each.about.flags or (each.flag,))
    return flags if each.kind is bool else f"{flags} {each.about.metavar}".rstrip()


def _in_order(options: list[Declared]) -> list[Declared]:
    """Arguments first, one that takes all the rest last: they are read from left to right."""
    return sorted(options, key=lambda each: (not each.about.argument, each.kind is tuple))


def _parameter(each: Declared) -> click.Parameter:
    # What may also be a text, such as 64MB for a number of bytes, is read by its declaration.
    kind = click.STRING if "str" in each.about.accepts else _KINDS.get(each.kind, click.STRING)
    if each.about.argument:
        several = each.kind is tuple
        required = each.field.is_required()
        return click.Argument(
            [each.name], type=kind, nargs=-1 if several else 1, required=required, metavar=each.about.metavar
        )
    flags = each.about.flags or (each.flag,)
    if each.kind is bool:
        return click.Option([*flags, each.name], is_flag=True, default=None)
    several = each.about.repeats
    completion = {"shell_complete": _completer(each)} if each.choices or each.name in _COMPLETED else {}
    return click.Option(
        [*flags, each.name],
        type=kind,
        multiple=several,
        default=None,
        metavar=each.about.metavar or None,
        **completion,
    )


def _completer(each: Declared) -> Any:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = names(_COMPLETED[each.name]) if each.name in _COMPLETED else each.choices
        return [CompletionItem(word) for word in known if word.startswith(incomplete)]

    return complete


def _help_all() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            ctx.meta[_LONG] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        [_LONG], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show all options."
    )
