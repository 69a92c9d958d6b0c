"""The command line: anechoic demo | plan | app | stream | explain | audit | budget."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from anechoic.cli.parser import parser_of_all
from anechoic.cli.progress import one_line
from anechoic.errors import AnechoicError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 for what the caller can mend, 130 after Ctrl-C.

    `audit` returns 1 where it refutes a guarantee, `stream` 3 where too many records would be left out.
    """
    return run_command(parser_of_all(), arguments)


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """As `main`, for the commands of a parser."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    options.command_line = shlex.join([*shlex.split(parser.prog), *given])
    name = f"{parser.prog} {options.command}"
    try:
        code: int = options.run(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AnechoicError, ValueError, OSError) as error:
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return int(getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
