"""The command ``sbm``."""

import sys

import tyro
from rich.console import Console
from rich.markup import escape

from spectral_bellman.tabular import study


def tabular(config: tyro.conf.OmitArgPrefixes[study.TabularStudy]) -> None:
    """Show the method on finite MDPs, where it is exact."""
    study.run(config, Console())


COMMANDS = {"tabular": tabular}


def main() -> None:
    """Entry point: a user's mistake is one line and exit status 2, not a traceback."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="sbm", description="The Spectral Bellman Method.")
    except OSError as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
