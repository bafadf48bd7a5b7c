"""`meshwright completion SHELL`: a script that completes commands, options and model names."""

from __future__ import annotations

import argparse

Words = dict[str, list[str]]
"""Each command's options."""

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = {name: _options(parser, name) for name, parser in args.parsers().items()}
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](found))
    return 0


def _options(parser: argparse.ArgumentParser, name: str) -> list[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            own = action.choices[name]._actions
            return sorted(text for one in own for text in one.option_strings if text.startswith("--"))
    return []


def models() -> list[str]:
    from meshwright.models.families import FAMILIES
    from meshwright.models.named import NAMED

    return sorted({*FAMILIES, *NAMED})


def _bash(found: Words) -> str:
    cases = "\n".join(f'        {name}) words="{" ".join(options)}" ;;' for name, options in found.items())
    return f"""_meshwright() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(found)}"
    elif [[ "$current" != -* ]]; then words="$words {" ".join(models())}"; fi
    COMPREPLY=($(compgen -W "$words" -f -- "$current"))
}}
complete -F _meshwright meshwright"""


def _zsh(found: Words) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(found)}"


def _fish(found: Words) -> str:
    lines = [f"complete -c meshwright -n __fish_use_subcommand -f -a '{' '.join(found)}'"]
    for name, options in found.items():
        seen = f"__fish_seen_subcommand_from {name}"
        lines += [f"complete -c meshwright -n '{seen}' -l {option[2:]}" for option in options]
    return "\n".join([*lines, f"complete -c meshwright -n 'not __fish_use_subcommand' -a '{' '.join(models())}'"])
