"""Write the reference of the commands from their own help: ``python docs/commands.py > docs/commands.md``."""

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

import django
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandParser

COMMANDS = ("runworker", "prunejobs", "jobs")
INTRODUCTION = """\
# Commands

`manage.py COMMAND --help` says the same; `make reference` writes this page from it. Each command takes
`--database ALIAS`, the database of the jobs, and Django's own options. Each subcommand of `jobs` also takes `--json`
and prints [one line for programs](operations.md#for-programs). The [worker](worker.md), [operations](operations.md) and
[retention](retention.md) pages show the commands at work.

`ojs_worker` is `runworker` under a name that no other package uses.
"""
FILTERS = ("--state", "--queue", "--type", "--key", "--worker", "--since", "--until", "--dead-letter")
"""Arguments that several subcommands of `jobs` share: told once."""


def write() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *(line for name in COMMANDS for line in section(parser_of(name), f"## {name}"))])


def parser_of(name: str) -> CommandParser:
    return load_command_class("django_ojs_unique", name).create_parser("manage.py", name)


def section(parser: argparse.ArgumentParser, heading: str, shared: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines about a command, and those about its subcommands."""
    yield f"{heading}\n"
    for paragraph in (parser.description or "").split("\n\n"):
        yield textwrap.fill(marked(" ".join(paragraph.split())), 120, break_on_hyphens=False) + "\n"
    arguments = [action for action in own(parser) if action.nargs != argparse.PARSER]
    told = []
    if is_filtered(parser):
        arguments = [action for action in arguments if not is_filter(action)]
        told.append("the [filters](#filters)")
    told += [said(action) for action in arguments if row(action) in shared]
    if told:
        yield f"Takes {', '.join(told[:-1])} and {told[-1]}.\n" if told[1:] else f"Takes {told[0]}.\n"
    if arguments := [action for action in arguments if row(action) not in shared]:
        yield from table_of(arguments)
    for action in own(parser):
        if action.nargs == argparse.PARSER:
            yield from subsections(list(action.choices.items()), heading)


def subsections(parsers: list[tuple[str, argparse.ArgumentParser]], heading: str) -> Iterator[str]:
    """Yield the lines about all subcommands: first the arguments that they share."""
    yield f"#{heading[:2]} Filters\n"
    yield "A job must match all that are given.\n"
    first = next(parser for _, parser in parsers if is_filtered(parser))
    yield from table_of([action for action in own(first) if is_filter(action)])
    found = {row(action): action for _, parser in parsers for action in own(parser) if not is_filter(action)}
    counts = Counter(row(action) for _, parser in parsers for action in own(parser))
    shared = []
    for line, action in found.items():  # of two arguments of one name only the more common one
        alike = [counts[other] for other in found if said(found[other]) == said(action)]
        if counts[line] > 1 and counts[line] == max(alike):
            shared.append(line)
    yield f"#{heading[:2]} Shared arguments\n"
    yield from table_of([found[line] for line in shared])
    for name, parser in parsers:
        yield from section(parser, f"#{heading} {name}", shared)
        if name == "verify":
            from django_ojs_unique.integrity import Kind  # needs the apps

            yield "| what it finds | what `--fix` does |\n|---|---|"
            yield from (f"| {kind.problem} | {kind.hint} |" for kind in Kind)
            yield ""


def table_of(arguments: list[argparse.Action]) -> Iterator[str]:
    yield "| argument | meaning |\n|---|---|"
    yield from map(row, arguments)
    yield ""


def row(action: argparse.Action) -> str:
    return f"| {said(action)} | {meaning(action)} |"


def is_filter(action: argparse.Action) -> bool:
    return action.option_strings in [[name] for name in FILTERS]


def is_filtered(parser: argparse.ArgumentParser) -> bool:
    """Return whether it has all filters; one with ``--type`` alone means something else by it."""
    return sum(is_filter(action) for action in own(parser)) == len(FILTERS)


def own(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments that are not every command's."""
    general = {action.dest for action in BaseCommand().create_parser("manage.py", "")._actions} | {"database", "json"}
    return [action for action in parser._actions if action.dest not in general]


def said(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else action.metavar or action.dest.upper()
    repeated = " ..." if action.nargs in ("+", "*") else ""
    text = f"`{' '.join([*action.option_strings, value]).strip()}{repeated}`"
    return text.replace("|", "\\|")


def meaning(action: argparse.Action) -> str:
    choices = f" One of {', '.join(f'`{choice}`' for choice in action.choices)}." if action.choices else ""
    return marked((action.help or "").replace("|", "\\|")) + choices


def marked(text: str) -> str:
    """Set options in code, where they are not yet."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<!\w)--[a-z][a-z-]+", r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    django.setup()
    print(write(), end="")
