"""`python -m wingbar`, and the command `wingbar`: Ctrl-C is answered from the first import on."""

import os
import signal


def main() -> None:
    """Run the command line."""
    try:
        from wingbar import cli
    except KeyboardInterrupt:
        os.write(2, b"wingbar: stopped\n")
        os._exit(128 + signal.SIGINT)  # threads and exit handlers of half an import are not to be trusted
    cli.main()


if __name__ == "__main__":
    main()
