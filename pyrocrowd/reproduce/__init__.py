"""The tables of the papers, run again: which there are, and what one experiment of a table is.

Nothing here imports torch, so that `pyrocrowd reproduce --list` answers at once; a table's experiments are built when
it is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from pyrocrowd.errors import PyrocrowdError, did_you_mean, listed
from pyrocrowd.reproduce.results import Results


@dataclass
class Experiment:
    """One method on one data set: a training run for every seed, which gives several figures at once.

    Attributes
    ----------
    dataset, method : str
        As they stand in the table; without commas, which separate the names in `--only` and `--dataset`.
    run : function of the seed
        Gives a dict `(metric, selection)` -> number, such as `("test accuracy", "last epoch")` -> 87.12. What the paper
        gives in percent is in percent.
    settings : dict
        Everything else that decides the figures, as JSON can hold it: where it changes, no kept seed is used again.
    published : dict, (metric, selection) -> str
        What the paper printed, such as "87.12 ± 0.55"; no key, or None, where it printed nothing.
    """

    dataset: str
    method: str
    run: Callable[[int], dict]
    settings: dict = field(default_factory=dict)
    published: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of a paper: its name on the command line, the data folders it needs, and how its experiments are made."""

    name: str
    title: str
    citation: str
    needs: tuple[str, ...]
    experiments: Callable[[], list[Experiment]]


def later(home: str) -> Callable[[], list[Experiment]]:
    """The function at "module:name", whose module is imported when it is called and not before."""

    def build():
        module, name = home.split(":")
        return getattr(import_module(module), name)()

    return build


CONAL = "Chu, Ma, Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021, arXiv 2012.13052"
TANNO = (
    "Tanno, Saeedi, Sankaranarayanan, Alexander, Silberman: Learning From Noisy Labels By Regularized Estimation Of "
    "Annotator Confusion. CVPR 2019, arXiv 1902.03680"
)
REAL = ("labelme", "music_genre")
HOME = "pyrocrowd.reproduce"

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("conal-table1", "CoNAL: accuracy on LabelMe and Music", CONAL, REAL, later(f"{HOME}.conal:table1")),
        Table("conal-table2", "CoNAL: weight of the distance term", CONAL, REAL, later(f"{HOME}.conal:table2")),
        Table("conal-table3", "CoNAL: are more parameters enough?", CONAL, REAL, later(f"{HOME}.conal:table3")),
        Table("conal-synthetic", "CoNAL: how much noise is common", CONAL, (), later(f"{HOME}.conal:synthetic")),
        Table("trace-mnist", "Trace: five flippers of growing skill", TANNO, ("mnist",), later(f"{HOME}.trace:mnist")),
        Table("trace-cifar", "Trace: four annotators on CIFAR-10", TANNO, ("cifar10n",), later(f"{HOME}.trace:cifar")),
    )
}


def find(name: str) -> Table:
    """A table by its name."""
    if name.lower() not in TABLES:
        raise PyrocrowdError(f"There is no table {name!r} (there are {names()}).{did_you_mean(name, TABLES)}")
    return TABLES[name.lower()]


def names() -> str:
    """All tables in one line, for a sentence."""
    return listed(TABLES, len(TABLES)) or "none yet"


def reproduce(table: str, seeds=5, only=None, dataset=None, data=None, runs="reproduce-runs", fresh=False) -> Results:
    """Run the experiments of a paper's table again, and set the figures beside the published ones.

    Finished seeds are kept in a folder and not run again. Ctrl-C ends the work and gives the results so far.

    Parameters
    ----------
    table : str
        A name in `pyrocrowd.reproduce.TABLES`.
    seeds : int
        How many: 0, 1, ..., seeds - 1.
    only, dataset : str or list of str, optional
        The methods and the data sets to run, in any case; a str may hold several with commas between them.
    data : path, optional
        Folder of the real data sets; default: `$PYROCROWD_DATA`.
    runs : path
        Folder that keeps the finished seeds.
    fresh : bool
        Discard the kept seeds that were asked for, and run them again.

    Returns
    -------
    Results
    """
    found = find(table)
    from pyrocrowd.reproduce.run import run_table

    return run_table(found, seeds, only, dataset, data, runs, fresh)
