"""The command `wingbar explore`."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.terminal import say
from wingbar.train.progress import working
from wingbar.use.explore.options import Explore, check_explore, password

__all__ = ["explore"]


def explore(arguments: Sequence[str]) -> None:
    """look around in images, in the browser: wingbar explore runs/a [photos/]"""
    asked = parse(Explore, "explore", arguments)
    wanted = check_explore(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.explore.explorer import open_explorer
        from wingbar.use.explore.server import ExploreServer, bound

    listening = bound(asked.host, asked.port)  # a port that is taken is told before images are embedded
    with listening, ExploreServer(listening, open_explorer(asked, wanted), asked.host, password(asked)) as server:
        say(f"Open {server.address} in a browser; Ctrl-C ends it.")
        server.serve_until_stopped()
