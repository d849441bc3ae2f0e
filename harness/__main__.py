"""Run the command line. Ctrl-C during its import ends in one line as well."""

import gc
import sys

GARBAGE_THRESHOLD = 10_000
"""Objects between two collections. Imports create many objects that stay; the default of 700 takes
a twentieth of a command's start.
"""


def main() -> None:
    """Import the command line and run it. Ctrl-C during the import ends in one line as well."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        from harness.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("harness: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
