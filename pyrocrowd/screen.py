"""How a run looks on the screen. Names and messages are printed as `Text`, never as markup: a class may well be called
"[red]" or ":smile:"."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyrocrowd.errors import PyrocrowdWarning

LONGEST_CELL = 120  # of a table on the screen; the files hold every name in full

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def describe(record, annotators) -> None:
    """A run on the screen: its figures, and the annotators from best to worst."""
    figures, notes = record["metrics"], record["notes"]
    title = f"\n{record['model']['name']} by {record['engine']['name'].upper()}"
    how = (
        f"  {notes['stopped']} after {len(record['losses']):,} iterations, "
        f"{record['wall_time_seconds']:.1f} s, seed {record['seed']}"
    )
    out.print(Text.assemble((title, "bold"), how))
    if notes.get("divergences"):
        out.print(f"[yellow]{notes['divergences']} divergent draws: do not trust the tails.[/]")
    table = Table("figure", "value", box=None, show_header=False, pad_edge=False)
    for name, value in figures.items():
        add_row(table, name.replace("_", " "), f"{value:,.4f}")
    out.print(table)
    ranked = annotators.sort_values("skill", ascending=False)
    shown = ranked if len(ranked) <= 14 else ranked.iloc[[*range(7), *range(len(ranked) - 7, len(ranked))]]
    known = "true_skill" in ranked
    titles = ["annotator", "labels", "skill", "90% interval", *(["true skill"] if known else []), "most often confuses"]
    table = Table(*titles)
    for row in shown.itertuples():
        skill = f"{row.skill:.2f}", f"{row.skill_low:.2f} to {row.skill_high:.2f}"
        extra = [f"{row.true_skill:.2f}"] if known else []
        confuses = f"{row.most_frequent_confusion} ({row.confusion_rate:.0%})" if row.most_frequent_confusion else ""
        add_row(table, row.annotator, row.n_labels, *skill, *extra, confuses)
    out.print(table)
    if len(shown) < len(ranked):
        out.print(f"The 7 best and the 7 worst of {len(ranked)} annotators; all of them are in annotators.csv.")


def add_row(table, *cells) -> None:
    """A row of plain text, cut where a cell would fill the screen."""
    shown = (text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…" for text in map(str, cells))
    table.add_row(*map(Text, shown))


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Our own warnings as one line; those of other libraries are not for the user."""
    if issubclass(category, PyrocrowdWarning):
        err.print(Text.assemble(("warning: ", "yellow"), str(message)))
