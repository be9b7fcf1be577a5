"""`wingbar completion`: a script from which bash and zsh know all commands and their words; they ask nobody again."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress

from wingbar.errors import UserError
from wingbar.terminal import say

Command = Callable[[Sequence[str]], None]
HELP = """wingbar completion bash | zsh: commands and options by the Tab key, from the next shell on. One line does it:
  echo 'eval "$(wingbar completion bash)"' >> ~/.bashrc
  echo 'eval "$(wingbar completion zsh)"' >> ~/.zshrc"""
BEFORE = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"}
SCRIPT = """_wingbar() {{
  local words=''
  case "$COMP_CWORD:${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
    1:*) words={commands};;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _wingbar wingbar"""


def complete(
    arguments: Sequence[str],
    commands: Mapping[str, Command],
    parts: Mapping[str, Sequence[str]],
    recipes: Sequence[str],
) -> None:
    """Print the script for a shell; `parts` are the commands that some commands have."""
    if list(arguments) in (["-h"], ["--help"]):
        say(HELP)
        sys.exit(0)
    if list(arguments) not in (["bash"], ["zsh"]):
        raise UserError(f"wingbar completion knows bash and zsh, but got {' '.join(arguments) or 'nothing'}")
    below = {f"{name} {part}": _words(commands[name], part) for name, some in parts.items() for part in some}
    own = {name: [*parts.get(name, ()), *_words(command)] for name, command in commands.items()}
    own["train"] += recipes
    cases = [_case(f"'{name}'", words) for name, words in below.items()]  # the first that fits is taken
    cases += [_case(f"'{name} '*", words) for name, words in own.items()]
    say(BEFORE[arguments[0]] + SCRIPT.format(commands=_quoted(commands), cases="\n".join(cases)))


def _case(pattern: str, words: Iterable[str]) -> str:
    return f"    *:{pattern}) words={_quoted(words)};;"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _words(command: Command, *before: str) -> list[str]:
    """The options that a command's help lists."""
    with redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        command([*before, "--help"])
    return sorted(set(re.findall(r"(?<![\w.-])--[a-z][\w.-]*\w", said.getvalue())))
