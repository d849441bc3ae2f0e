"""Run the command line. Ctrl-C during its import ends in one line as well."""

import sys


def main() -> None:
    """Import the command line and run it. Ctrl-C during the import ends in one line as well."""
    try:
        from harness.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("harness: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
