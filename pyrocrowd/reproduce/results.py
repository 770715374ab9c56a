"""What came out of a table's experiments, beside what the paper printed: as rows, Markdown, JSON or a data frame."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import fmean, stdev

KEYS = ("table", "dataset", "method", "metric", "published", "mean", "std", "seeds", "selection")
COLUMNS = {name: name for name in ("dataset", "method", "metric", "published")} | {
    "ours": "ours (mean ± std)",
    "seeds": "seeds",
    "selection": "how selected",
}
NOTHING = "-"


@dataclass(repr=False)
class Results:
    """The rows of a table, one for every figure of every experiment.

    Attributes
    ----------
    title, citation : str
    rows : list of dict
        Each with the keys `table, dataset, method, metric, published, mean, std, seeds, selection`. `std` is the sample
        standard deviation over the seeds, None for one seed; `mean` and `std` are None where a seed gave no number.
    reasons : dict
        Data set -> why it was left out.
    interrupted : bool
        Whether Ctrl-C ended the work; then the rows hold what was finished until then.
    """

    title: str
    citation: str
    rows: list
    reasons: dict
    interrupted: bool = False

    def to_markdown(self) -> str:
        """The table with its title and citation, as the command line prints it."""
        lines = [COLUMNS.values(), ["---"] * len(COLUMNS), *map(self._line, self.rows)]
        table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        return f"### {self.title}\n\n{self.citation}\n\n{table}"

    def to_json(self) -> str:
        """The rows as a JSON list."""
        return json.dumps(self.rows, indent=1, allow_nan=False)

    def to_frame(self):
        """The rows as a `pandas.DataFrame`."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(KEYS))

    def __repr__(self):
        return self.to_markdown()

    def _repr_markdown_(self):
        return self.to_markdown()

    def _line(self, row) -> list:
        ours = figure(row["mean"], row["std"]) if row["seeds"] else self.reasons.get(row["dataset"])
        return [ours if name == "ours" else row[name] for name in COLUMNS]


def rows_of(table, experiment, measured) -> list[dict]:
    """The rows of one experiment; `measured` holds what each finished seed gave.

    Figures that the paper printed and no seed gave have rows too, so that nobody takes them for done.
    """
    figures = dict.fromkeys(key for found in (*measured, experiment.published) for key in found)
    rows = []
    for key in figures or [(None, None)]:
        values = [found[key] for found in measured if key in found]
        mean, spread = mean_and_spread(values)
        metric, selection = key
        place = (table, experiment.dataset, experiment.method, metric, experiment.published.get(key))
        rows.append(dict(zip(KEYS, (*place, mean, spread, len(values), selection), strict=True)))
    return rows


def mean_and_spread(values) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there is none."""
    if not values or not all(map(math.isfinite, values)):
        return None, None
    return fmean(values), stdev(values) if len(values) > 1 else None


def figure(mean, spread) -> str:
    """`87.12 ± 0.55`, both with two decimals, or with four where the mean is below one."""
    if mean is None:
        return "nan"
    decimals = 4 if abs(mean) < 1 else 2
    return f"{mean:.{decimals}f} ± {NOTHING if spread is None else f'{spread:.{decimals}f}'}"


def _cell(value) -> str:
    """Text that neither a pipe nor a line break can turn into two cells."""
    return NOTHING if value is None else " ".join(str(value).split()).replace("|", r"\|")
