"""Experiments times seeds. Every finished seed is a small file in a folder, so that an interruption costs one seed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

from rich.progress_bar import ProgressBar
from rich.text import Text

import pyrocrowd
from pyrocrowd.data.sets import VARIABLE
from pyrocrowd.errors import PyrocrowdError, PyrocrowdWarning, at_least, did_you_mean, listed
from pyrocrowd.reproduce import Experiment, Table
from pyrocrowd.reproduce.results import Results, rows_of
from pyrocrowd.screen import err

BAR_WIDTH = 30
LONGEST_NAME = 60  # of a folder, without the digits that tell it from others


@dataclass
class Work:
    """An experiment, the folder of its finished seeds, and what these gave: seed -> figures."""

    experiment: Experiment
    identity: dict
    folder: Path
    measured: dict = field(default_factory=dict)


def run_table(table: Table, seeds, only, dataset, data, runs, fresh) -> Results:
    """What `pyrocrowd.reproduce.reproduce` does, once the table is found."""
    at_least("seeds", seeds, 1)
    with _data_in(data):
        works = [_work(table, one, Path(runs)) for one in _select(table, only, dataset)]
        _check_place(Path(runs))
        if fresh:
            _discard(works, seeds)
        _take_kept(works, seeds)
        reasons, interrupted = {}, False
        try:
            _run_missing(table.name, works, seeds, reasons)
        except KeyboardInterrupt:
            interrupted = True
    rows = []
    for work in works:
        if work.measured or work.experiment.dataset in reasons:
            measured = [work.measured[seed] for seed in sorted(work.measured)]
            rows += rows_of(table.name, work.experiment, measured)
    return Results(table.title, table.citation, rows, reasons, interrupted)


def _run_missing(name, works, seeds, reasons) -> None:
    """Run what is not there yet; `reasons` gathers the data sets that are not on this machine."""
    missing = [(work, seed) for work in works for seed in range(seeds) if seed not in work.measured]
    total, started, finished = seeds * len(works), time.perf_counter(), 0
    for place, (work, seed) in enumerate(missing):
        experiment = work.experiment
        if experiment.dataset in reasons:
            continue
        left = (time.perf_counter() - started) / finished * (len(missing) - place) if finished else None
        _announce(name, total - len(missing) + place, total, experiment, seed, left)
        try:
            with _no_interruption_lost():
                figures = experiment.run(seed)
        except FileNotFoundError as absent:
            if absent.errno is not None:  # a file that the system did not find; a whole data set has no such number
                raise
            reasons[experiment.dataset] = str(absent)
            warnings.warn(f"{experiment.dataset} is left out. {absent}", PyrocrowdWarning, stacklevel=2)
            continue
        figures = {key: float(value) for key, value in figures.items()}
        keep_seed(work, seed, figures)
        work.measured[seed] = figures
        finished += 1


def _announce(name, done, total, experiment, seed, left) -> None:
    """One line on stderr before a seed. The bar stands still, because the fit below it draws a bar that moves."""
    what = f"{experiment.dataset}, {experiment.method}, seed {seed}"
    note = "" if left is None else f", about {timedelta(seconds=round(left))} left"
    bar = [ProgressBar(total, done, width=BAR_WIDTH)] if err.is_terminal else []
    err.print(*bar, Text(f" {done}/{total} {name}: {what}{note}"))


@contextmanager
def _no_interruption_lost():
    """An engine that Ctrl-C stops gives what it has learned; half a training must not be kept as a whole seed."""
    heard = []

    def hear(*_):
        heard.append(True)
        raise KeyboardInterrupt

    # Elsewhere than in the main thread no handler can be set, and one that somebody else set is not ours to replace.
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard:
        raise KeyboardInterrupt


# -------------------------------------------------------------------- what was asked for


def _select(table, only, dataset) -> list[Experiment]:
    """The experiments of the methods and data sets that were asked for; all that is wrong is said at once."""
    everything, problems = table.experiments(), []
    chosen = everything
    for thing, asked, name_of in (("method", only, attrgetter("method")), ("data set", dataset, attrgetter("dataset"))):
        if asked is None:
            continue
        known = {name_of(one).lower(): name_of(one) for one in everything}
        words = [word.strip() for word in (asked.split(",") if isinstance(asked, str) else asked)]
        has = listed(known.values(), len(known))
        problems += [
            f"{table.name} has no {thing} {word!r} (it has {has}).{did_you_mean(word, known.values())}"
            for word in words
            if word.lower() not in known
        ]
        wanted = {word.lower() for word in words}
        chosen = [one for one in chosen if name_of(one).lower() in wanted]
    if problems:
        raise PyrocrowdError(problems)
    if not chosen:
        raise PyrocrowdError(f"{table.name} has no such method on such a data set, although it has both.")
    return chosen


@contextmanager
def _data_in(folder):
    """For the duration, real data sets are looked for in this folder first."""
    if folder is None:
        yield
        return
    if not Path(folder).is_dir():
        raise PyrocrowdError(f"The folder {folder} does not exist.")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(Path(folder).resolve())
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


# -------------------------------------------------------------------- finished seeds on disk


def _check_place(runs: Path) -> None:
    """Whether seeds can be kept here: asked before the work begins."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=runs):
            pass
    except OSError as error:
        raise PyrocrowdError(f"{runs} cannot be written: {error.strerror or error}.") from None


def _work(table, experiment, runs) -> Work:
    identity = {
        "pyrocrowd": pyrocrowd.__version__,
        "table": table.name,
        "dataset": experiment.dataset,
        "method": experiment.method,
        "settings": experiment.settings,
    }
    text = json.dumps(identity, sort_keys=True)
    name = re.sub(r"[^\w.-]+", "_", f"{experiment.dataset}-{experiment.method}")[:LONGEST_NAME]
    folder = runs / table.name / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return Work(experiment, json.loads(text), folder)  # the identity as a file gives it back: tuples are lists there


def _discard(works, seeds) -> None:
    """All at once and before the work, so that what an interruption leaves is never older than the command."""
    for work in works:
        for seed in range(seeds):
            _file(work, seed).unlink(missing_ok=True)


def _take_kept(works, seeds) -> None:
    for work in works:
        found = {seed: read_seed(work, seed) for seed in range(seeds)}
        work.measured = {seed: figures for seed, figures in found.items() if figures is not None}


def _file(work, seed) -> Path:
    return work.folder / f"seed-{seed}.json"


def keep_seed(work, seed, figures) -> None:
    """Write what a seed gave; the file is there whole or not at all."""
    entries = [
        {"metric": metric, "selection": selection, "value": value if math.isfinite(value) else None}
        for (metric, selection), value in figures.items()
    ]
    work.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work.folder, prefix=".pyrocrowd-") as scratch:
        new = Path(scratch) / "seed.json"
        new.write_text(json.dumps({**work.identity, "seed": seed, "figures": entries}, indent=1), encoding="utf-8")
        new.replace(_file(work, seed))


def read_seed(work, seed) -> dict | None:
    """What a seed gave, or None where it was never finished or its file is broken: then it is run again."""
    try:
        record = json.loads(_file(work, seed).read_text(encoding="utf-8"))
        figures = record.pop("figures")
        if record != {**work.identity, "seed": seed}:
            return None
        values = {(one["metric"], one["selection"]): one["value"] for one in figures}
        return {key: math.nan if value is None else float(value) for key, value in values.items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
