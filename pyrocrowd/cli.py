"""The command line: verb MODEL DATA. Thin: it reads the words, calls the library, and says what came out.

Engine settings become flags by themselves, from the dataclasses. Nothing here imports torch until a verb does its work.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import shlex
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from pyrocrowd.errors import PyrocrowdError, counted, listed
from pyrocrowd.folders import check_file
from pyrocrowd.infer.settings import ENGINES
from pyrocrowd.screen import add_row, describe, err, out, show_warning

DEMO = "pyrocrowd demo"
INTERRUPTED = 130  # what shells call a command that Ctrl-C ended


class Verbs(TyperGroup):
    """A mistake of the user's ends a verb with code 2 and one sentence per problem."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except PyrocrowdError as error:
            problems = error.problems
        except BrokenPipeError:  # `pyrocrowd show run | head`: typer knows what to do
            raise
        except OSError as error:  # a full disk, a place without permission
            problems = [f"{error.filename or 'The system'}: {error.strerror or error}."]
        except KeyboardInterrupt:
            err.print("Interrupted; nothing was written.")
            raise typer.Exit(INTERRUPTED) from None
        for problem in problems:
            err.print(Text.assemble(("error: ", "bold red"), problem))
        raise typer.Exit(2)


app = typer.Typer(
    cls=Verbs,
    help="True labels, annotator skills and classifiers from noisy labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command line."""
    # Before torch loads: threads that wait by spinning slow a busy machine down many times over.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a name that the terminal cannot show must not end the run
    app()


# -------------------------------------------------------------------- fit

ModelName = Annotated[str, typer.Argument(help="A name from `pyrocrowd models`, file.py, file.py:name or module:name.")]
Data = Annotated[Path, typer.Argument(help="A .csv, .tsv, .parquet or .jsonl table, or a folder with annotations.csv.")]
Run = Annotated[Path, typer.Argument(help="A folder that `pyrocrowd fit` wrote.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the model; repeatable.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="PART=NAME", help="Which column is the item, annotator or label; repeatable."),
]
Features = Annotated[
    Path | None, typer.Option(help="Item features: .npy, or a table with the item in its first column.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fit(
    model: ModelName,
    data: Data,
    to: Annotated[Path, typer.Option("--out", help="Folder for the run; must not hold one yet.")],
    engine: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(ENGINES)}; default: what suits the model.")
    ] = None,
    features: Features = None,
    truth: Annotated[
        Path | None, typer.Option(help="Known true labels, to score the fit; never used to make it.")
    ] = None,
    no_truth: Annotated[bool, typer.Option("--no-truth", help="Leave the folder's own truth aside.")] = False,
    set_: Set = None,
    column: Columns = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there already.")] = False,
    **flags: Any,
) -> None:
    """Fit a model to a crowd and write labels, annotators and the posterior to a folder."""
    import pyrocrowd
    from pyrocrowd import store, zoo
    from pyrocrowd.data.read import read_split

    if truth and no_truth:
        raise PyrocrowdError("--truth and --no-truth contradict each other: give one of them.")
    entry = zoo.find(model)
    hyper_parameters = entry.settle(_settings(set_))
    store.RUN.check(to, force)
    crowd = pyrocrowd.Crowd.read(
        data, columns=dict(_pairs(column, "--column")), features=features, truth=False if no_truth else truth
    )
    chosen = _engine(entry, crowd, engine, {name: value for name, value in flags.items() if value is not None})
    out.print(Text(repr(crowd)))
    splits = {} if no_truth or features else _splits(crowd, data)  # the splits go with the folder's own features
    if getattr(chosen, "select", None) == "best":
        chosen.validation = splits["valid"] if "valid" in splits else read_split(crowd, data, "valid")
    result = pyrocrowd.fit(entry, crowd, chosen, seed=seed, device=device, **hyper_parameters)
    extra = {"command": shlex.join(["pyrocrowd", *sys.argv[1:]]), "metrics": result.metrics() | _scores(result, splits)}
    store.save(result, to, force, extra)
    describe(store.read_record(to), result.annotators())
    files = listed((name for name in store.RUN.files if (to / name).exists()), len(store.RUN.files))
    out.print(Text.assemble("Written to ", (str(to), "bold"), f": {files}"))
    if result.notes.get("stopped") == "interrupted":
        err.print("Stopped by Ctrl-C: what was learned until then was written.")
        raise typer.Exit(INTERRUPTED)


def _splits(crowd, data) -> dict:
    """The held-out splits with known truth beside the data; read before the fit, so that none spoils it afterwards."""
    from pyrocrowd.data.read import read_split

    beside = [split for split in ("valid", "test") if (data / f"features_{split}.npy").exists()]
    parts = {split: read_split(crowd, data, split) for split in beside}
    return {split: part for split, part in parts.items() if part.truth is not None}


def _scores(result, splits) -> dict:
    """Accuracy of the classifier, where the model is one, on the held-out splits."""
    from pyrocrowd import metrics

    if not result.anatomy.reads_features or result.anatomy.local:
        return {}
    return {
        f"{split}_accuracy": metrics.accuracy(part.truth, result.predict_proba(part.features))
        for split, part in splits.items()
    }


def _flag(setting) -> str:
    return "--" + setting.replace("_", "-")


def _engine_flags() -> list[inspect.Parameter]:
    """One flag for every setting of any engine; its help says whose it is and what it is by default."""
    homes: dict = {}
    for engine in ENGINES.values():
        for one in fields(engine):
            if not one.metadata.get("hidden"):
                homes.setdefault(one.name, []).append((engine, one))
    flags = []
    for name, places in homes.items():
        kind = str(places[0][1].type).split(" |")[0]
        whose = ", ".join(engine.name + ("" if one.default is None else f" {one.default}") for engine, one in places)
        doc = places[0][1].metadata["doc"]
        option = typer.Option(
            _flag(name),
            help=f"{doc[0].upper()}{doc[1:]}. [dim]{whose}[/]",
            rich_help_panel="Settings of the engines",
            show_default=False,
        )
        annotation = Annotated[{"int": int, "float": float, "str": str}[kind] | None, option]
        flags.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return flags


def _with_engine_flags(function):
    signature = inspect.signature(function, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + _engine_flags()
    function.__signature__ = signature.replace(parameters=parameters)
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


app.command()(_with_engine_flags(fit))


def _engine(entry, crowd, name, given):
    """The engine with the settings that were given; a flag of another engine is a mistake worth saying."""
    from pyrocrowd.infer.run import pick_engine

    kind = type(pick_engine(name, entry, crowd))
    known = [one.name for one in fields(kind) if not one.metadata.get("hidden")]
    strange = [flag for flag in given if flag not in known]
    if strange:
        has = listed((_flag(one) for one in known), len(known))
        raise PyrocrowdError([f"{_flag(flag)} is not a setting of {kind.name} (which has {has})." for flag in strange])
    return kind(**given)


def _pairs(words, flag) -> list[tuple[str, str]]:
    """`["strength=2", "likelihood=joint"]` in two parts each."""
    pairs = [tuple(word.split("=", 1)) for word in words or []]
    wrong = [word for word, pair in zip(words or [], pairs, strict=True) if len(pair) < 2 or not pair[0]]
    if wrong:
        raise PyrocrowdError([f"{flag} takes NAME=VALUE, not {word!r}." for word in wrong])
    return pairs


def _settings(words) -> dict:
    """What --set says: numbers, true, false and none are what they look like, everything else is text."""
    constants, found = {"true": True, "false": False, "none": None}, {}
    for name, text in _pairs(words, "--set"):
        try:
            found[name] = constants[text.lower()] if text.lower() in constants else ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError):
            found[name] = text
    return found


# -------------------------------------------------------------------- after the fit


@app.command()
def predict(
    run: Run,
    to: Annotated[Path, typer.Option("--out", help="The .csv file to write.")],
    features: Features = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
) -> None:
    """Label items: new ones by their features, or, without --features, those of the run."""
    import numpy as np
    import pandas as pd

    import pyrocrowd
    from pyrocrowd.data.read import read_features
    from pyrocrowd.result import label_table

    check_file(to, force)
    result = pyrocrowd.load(run)
    if features is None:
        table = result.labels()
    else:
        rows = read_features(features)
        probabilities = result.predict_proba(np.asarray(rows))
        names = np.asarray(rows.index) if isinstance(rows, pd.DataFrame) else np.arange(len(rows))
        table = label_table(names, result.crowd.class_names, probabilities)
    table.to_csv(to, index=False)
    out.print(Text(f"{counted(len(table), 'item')} labelled in {to}"))


@app.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """What a run found: the figures, and the annotators from best to worst."""
    import pandas as pd

    from pyrocrowd import store

    record = store.read_record(run)
    if as_json:
        print(json.dumps(record, indent=1))
        return
    text = {"annotator": str, "most_frequent_confusion": str}  # a name such as 007 is not a number
    describe(record, pd.read_csv(run / "annotators.csv", dtype=text, keep_default_na=False))


@app.command()
def models(as_json: AsJson = False) -> None:
    """The models that can be named by one word."""
    from pyrocrowd import zoo

    rows = []
    for name in zoo.names():
        entry = zoo.find(name)
        absent = {"em": entry.m_step is None, "nuts": entry.has_networks}  # which it would leave untrained
        engines = [engine for engine in ENGINES if not absent.get(engine)]
        needs = "features" if entry.has_networks else "labels"
        rows.append(
            {
                "name": name,
                "summary": entry.summary,
                "needs": needs,
                "engines": engines,
                "hyper_parameters": entry.hyper_parameters,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1, default=str))
        return
    titles = "model", "what it is", "needs", "engines", "settings"
    table = Table(*(Column(title, overflow="fold") for title in titles))
    for row in rows:
        hyper = ", ".join(f"{name}={value!r}" for name, value in row["hyper_parameters"].items())
        add_row(table, row["name"], row["summary"], row["needs"], ", ".join(row["engines"]), hyper)
    out.print(table)


@app.command()
def check(
    model: ModelName,
    data: Annotated[Path | None, typer.Option("--data", help="A crowd to try it on; default: the demo's.")] = None,
    features: Features = None,
    set_: Set = None,
    column: Columns = None,
) -> None:
    """Run a model once and say what it draws, or what is wrong with it."""
    import pyrocrowd
    from pyrocrowd import zoo
    from pyrocrowd.check import examine
    from pyrocrowd.data.sets import digits
    from pyrocrowd.infer.run import bind, workspace

    entry = zoo.find(model)
    hyper_parameters = entry.settle(_settings(set_))
    columns = dict(_pairs(column, "--column"))
    crowd = digits().crowd if data is None else pyrocrowd.Crowd.read(data, columns=columns, features=features)
    with workspace(crowd.device, seed=0):
        anatomy = examine(bind(entry, crowd, hyper_parameters), crowd, entry.name)
    table = Table("site", "kind", title=f"{entry.name} keeps the contract")
    for name, place in anatomy.enumerated.items():
        add_row(table, name, f"discrete, summed out, one for each of the {place}")
    for name in anatomy.latent:
        place = "item" if name in anatomy.local else "annotator" if name in anatomy.in_annotators else None
        add_row(table, name, f"continuous, one for {f'each {place}' if place else 'the whole crowd'}")
    add_row(table, "label", "observed")
    out.print(table)
    reads = "reads" if anatomy.reads_features else "does not read"
    out.print(f"It {reads} item features; EM is {'there' if entry.m_step else 'not there (no m_step)'}.")


class Simulators(TyperGroup):
    """The registered simulators as commands, built when they are asked for: other verbs do not wait for them."""

    def list_commands(self, ctx):
        from pyrocrowd.data.simulate import SIMULATORS

        return list(SIMULATORS)

    def get_command(self, ctx, name):
        from pyrocrowd.data.simulate import SIMULATORS

        return _simulation(name, SIMULATORS[name]) if name in SIMULATORS else None


def _simulation(name, simulator):
    """A command with a flag for every argument of the simulator that a word can say."""
    from pyrocrowd.data.simulate import arguments
    from pyrocrowd.data.simulate.simulated import FOLDER

    def simulate(to, force, **settings):
        FOLDER.check(to, force)
        made = simulator(**settings)
        made.save(to, force)
        out.print(Text(repr(made.crowd)))
        following = shlex.join(["pyrocrowd", "fit", "dawid_skene", str(to), "--out", "run"])
        out.print(Text.assemble("Written to ", (str(to), "bold"), "; fit it with ", (following, "bold")))

    flags = [("to", "--out", inspect.Parameter.empty, Path, "Folder for the crowd; must not hold one yet.")]
    flags += [(one, _flag(one), value, type(value), text) for one, value, text in arguments.flags(simulator)]
    flags += [("force", "--force", False, bool, "Replace a simulated crowd that is there already.")]
    kinds = {one: Annotated[kind, typer.Option(flag, help=text)] for one, flag, _, kind, text in flags}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(flag[0], keyword, default=flag[2], annotation=kinds[flag[0]]) for flag in flags]
    simulate.__signature__, simulate.__annotations__ = inspect.Signature(parameters), kinds
    verb = typer.Typer(add_completion=False)
    verb.command(name, help=arguments.summary(simulator))(simulate)
    return typer.main.get_command(verb)


made_up = typer.Typer(cls=Simulators, help="Make up a crowd, and keep the truth behind it.", no_args_is_help=True)
app.add_typer(made_up, name="simulate")


@app.command()
def demo(to: Annotated[Path, typer.Option("--out", help="Folder for the run.")] = Path("demo-run")) -> None:
    """Fit a model to handwritten digits labelled by twelve made-up annotators, and show what it learned."""
    import pyrocrowd
    from pyrocrowd import metrics, store
    from pyrocrowd.data.sets import digits

    made_up = digits()
    crowd = made_up.crowd
    again = (to / "run.json").exists() and store.read_record(to).get("command") == DEMO  # but never someone's own run
    store.RUN.check(to, force=again)
    out.print(Text(repr(crowd)))
    result = pyrocrowd.fit("dawid_skene", crowd, pyrocrowd.SVI(steps=800))
    store.save(result, to, force=again, extra={"command": DEMO})
    annotators = result.annotators()
    annotators["true_skill"] = metrics.skill(made_up.confusion, result.truth.mean(0))
    describe(store.read_record(to), annotators)
    look, own = shlex.join(["pyrocrowd", "show", str(to)]), "pyrocrowd fit dawid_skene labels.csv --out run"
    bold = (str(to), "bold"), (look, "bold"), (own, "bold")
    out.print(
        Text.assemble("The run is in ", bold[0], "; look again with ", bold[1], ", or fit your own table: ", bold[2])
    )


# -------------------------------------------------------------------- the papers


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Argument(help="A name from `pyrocrowd reproduce --list`.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name all tables.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2 and so on.")] = 5,
    only: Annotated[str | None, typer.Option(metavar="METHOD,...", help="Only these methods.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these data sets.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the real data; default: $PYROCROWD_DATA.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder that keeps the finished seeds.")] = Path("reproduce-runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard these seeds where they are kept; run again.")] = False,
    to: Annotated[Path | None, typer.Option("--out", help="A file for the Markdown too.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments again, and print their figures beside the published ones."""
    from pyrocrowd import reproduce as papers

    if list_:
        _list_tables(papers.TABLES.values(), as_json)
        return
    if table is None:
        raise PyrocrowdError(f"Name a table (there are {papers.names()}); --list says what they are.")
    if to:
        check_file(to, force)
    results = papers.reproduce(table, seeds, only, dataset, data, runs, fresh)
    print(results.to_json() if as_json else results.to_markdown())
    if results.interrupted:  # and no file is written, which would stand in the way of the same command
        same = "the same command without --fresh" if fresh else "the same command"
        err.print(Text(f"Stopped by Ctrl-C: finished seeds are kept in {runs}; {same} goes on from there."))
        raise typer.Exit(INTERRUPTED)
    if to:
        to.write_text(results.to_markdown() + "\n", encoding="utf-8")


def _list_tables(tables, as_json) -> None:
    if as_json:
        keys = "name", "title", "citation", "needs"
        print(json.dumps([{key: getattr(one, key) for key in keys} for one in tables], indent=1))
        return
    screen = Table(*(Column(title, overflow="fold") for title in ("table", "what it is", "paper", "data")))
    for one in tables:
        add_row(screen, one.name, one.title, one.citation, ", ".join(one.needs))
    out.print(screen)
