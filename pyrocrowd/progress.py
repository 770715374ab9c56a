"""A progress bar with the loss and the time left, quiet where nobody watches."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(title: str, total: int):
    """Gives a function `advance(steps=1, note="")` that moves the bar; the note stands at its end."""
    console = Console(stderr=True)
    # In a notebook rich draws with ipywidgets, and warns at every bar where they are not installed.
    watched = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
    # Every refresh of a bar in a notebook is a message, and a busy machine loses messages that come too fast.
    speed = 1 if console.is_jupyter else 10
    options = dict(console=console, disable=not watched, refresh_per_second=speed)
    with Progress(*columns, TimeRemainingColumn(), **options) as bar:
        work = bar.add_task(title, total=total, note="")

        def advance(steps=1, note=""):
            bar.update(work, advance=steps, note=note)

        yield advance
