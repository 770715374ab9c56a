"""`fit`: from a model and a crowd to a `Fit`. Find the model, check it, let the engine settle the continuous sites,
put the discrete ones back with one exact pass per draw."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import pyro
import torch

from pyrocrowd import zoo
from pyrocrowd.check import Anatomy, examine
from pyrocrowd.data import Crowd
from pyrocrowd.errors import PyrocrowdError, PyrocrowdWarning, did_you_mean
from pyrocrowd.infer.exact import explain_crowd, label_tables
from pyrocrowd.infer.settings import EM, ENGINES, MAP, NUTS, SVI, Engine
from pyrocrowd.progress import progress_bar

MOST_CELLS = 2e7  # entries of confusion matrices, one matrix per annotation, that are held at once
ITEMS_FOR_THE_IDLE = 50


@dataclass
class Task:
    """What an engine is given."""

    model: Callable
    crowd: Crowd
    anatomy: Anatomy
    m_step: Callable | None
    seed: int
    name: str


@dataclass
class Learned:
    """What every engine returns.

    Attributes
    ----------
    draws : dict of torch.Tensor, shape (chain, draw, ...)
        Values of the continuous sites; a point estimate is one chain with one draw.
    losses : list of float
        Minus the log-posterior (EM, MAP), minus the ELBO (SVI), or the potential energy (NUTS), per iteration.
    history : dict of list
        What was watched along the way, one entry per look.
    stats : dict of array, shape (chain, draw)
        The sampler's own diary.
    notes : dict
        Whether it converged, why it stopped, what selected the state that was kept.
    """

    draws: dict
    losses: list
    history: dict = field(default_factory=dict)
    stats: dict = field(default_factory=dict)
    notes: dict = field(default_factory=dict)


def fit(model, crowd: Crowd, engine: Engine | str | None = None, seed=0, device="auto", **hyper_parameters):
    """Fit a model to a crowd.

    Parameters
    ----------
    model : str, path, function or class
        `"dawid_skene"`, `"my_model.py"`, `"my_model.py:story"`, `"package.module:attribute"`, or the Python object.
    crowd : Crowd
    engine : EM, MAP, SVI or NUTS, optional
        Settings of the engine, or its name. Default: MAP where the model has a network and the crowd features to train
        it, EM where it has an M-step, else SVI.
    seed : int
    device : "auto", "cpu", "cuda" or "mps"
    **hyper_parameters
        Keywords of the model.

    Returns
    -------
    Fit
    """
    from pyrocrowd.result import Fit

    entry = zoo.find(model)
    hyper_parameters = entry.settle(hyper_parameters)
    engine = pick_engine(engine, entry, crowd)
    if not crowd.n_annotations:
        raise PyrocrowdError("The crowd holds no labels: there is nothing to fit.")
    started = time.perf_counter()
    crowd = crowd.to(pick_device(device))
    with workspace(crowd.device, engine, seed):
        bound = bind(entry, crowd, hyper_parameters)
        anatomy = examine(bound, crowd, entry.name)
        task = Task(bound, crowd, anatomy, entry.bind_m_step(bound, hyper_parameters), seed, entry.name)
        _check_engine(engine, task)
        learned = engine.run(task)
        found = recover(bound, crowd, anatomy, learned.draws)
        weights = collect_weights(bound)
    result = Fit(
        model=entry,
        hyper_parameters=hyper_parameters,
        engine=engine,
        seed=seed,
        crowd=crowd,
        anatomy=anatomy,
        bound=bound,
        weights=weights,
        learned=learned,
        wall_time=time.perf_counter() - started,
        **found,
    )
    result.notes["doubts"] = list(bound.doubts(result)) if hasattr(bound, "doubts") else []
    for doubt in result.notes["doubts"]:
        warnings.warn(doubt, PyrocrowdWarning, stacklevel=2)
    return result


def pick_engine(engine, entry, crowd) -> Engine:
    """The engine that was asked for, or the one that suits the model and the crowd."""
    if engine is None:
        trains = entry.has_networks and (crowd.features is not None or entry.m_step is None)
        engine = MAP() if trains else EM() if entry.m_step is not None else SVI()
    if isinstance(engine, str):
        if engine.lower() not in ENGINES:
            hint = did_you_mean(engine, ENGINES)
            raise PyrocrowdError(f"There is no engine {engine!r} (there are {', '.join(ENGINES)}).{hint}")
        engine = ENGINES[engine.lower()]()
    if not isinstance(engine, Engine):
        raise PyrocrowdError(f"The engine must be one of EM(), MAP(), SVI(), NUTS() or its name, not {engine!r}.")
    if isinstance(engine, EM) and entry.m_step is None:
        raise PyrocrowdError(f"{entry.name} has no m_step, which EM needs: fit it with MAP, SVI or NUTS.")
    return engine


def _check_engine(engine, task: Task) -> None:
    """What only shows once the model is built on the crowd."""
    name, model = task.name, task.model
    if isinstance(engine, EM) and task.anatomy.redraws_truth:
        raise PyrocrowdError(f"{name} redraws the truth for every label, and EM needs one truth per item: use MAP.")
    if isinstance(engine, EM) and task.m_step is None:
        raise PyrocrowdError(f"{name} has no closed forms with these settings, which EM needs: use MAP or SVI.")
    trainable = isinstance(model, torch.nn.Module) and any(one.requires_grad for one in model.parameters())
    if isinstance(engine, NUTS) and trainable:
        raise PyrocrowdError(
            f"{name} has networks or weights here, and NUTS would leave them untrained: fit it with MAP or SVI."
        )


def pick_device(device) -> torch.device:
    """`auto` is a GPU where there is one."""
    if device == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise PyrocrowdError(f"The device {device!s} cannot be used here: {reason}") from None
    return device


@contextmanager
def workspace(device, engine=None, seed=None):
    """Where models run: their own parameters and random numbers, tensors made on the device in the right precision.

    EM and NUTS count on small differences of large sums, so they work in double precision where the device has it.
    """
    dtype = torch.get_default_dtype()
    double = isinstance(engine, (EM, NUTS)) and device.type != "mps"
    random_state = pyro.util.get_rng_state()
    try:
        torch.set_default_dtype(torch.float64 if double else dtype)
        if seed is not None:
            pyro.set_rng_seed(seed)
        with ExitStack() as stack:
            stack.enter_context(pyro.get_param_store().scope())
            stack.enter_context(pyro.validation_enabled(False))
            if device.type != "cpu":  # every torch call passes through this: not worth it where it changes nothing
                stack.enter_context(device)
            yield
    finally:
        torch.set_default_dtype(dtype)
        pyro.util.set_rng_state(random_state)


def bind(entry, crowd, hyper_parameters):
    """The model as a function of one batch, its networks on the device and in the precision of the workspace."""
    bound = entry.bind(crowd, hyper_parameters)
    return bound.to(crowd.device, torch.get_default_dtype()) if isinstance(bound, torch.nn.Module) else bound


@torch.no_grad()
def recover(model, crowd, anatomy, draws) -> dict:
    """Put the discrete sites back: their posterior, averaged over the draws of the continuous ones.

    Returns
    -------
    dict
        `truth` (items, classes); `marginals`, site -> (items or annotations, values); `pointwise` (chain, draw,
        annotations); `log_likelihood` (chain, draw); `recorded`, what the model recorded outside `items` with
        `pyro.deterministic`, site -> (chain, draw, ...), and the mean confusion matrices; `noted`, what it recorded
        inside, site -> (items or annotations, ...).
    """
    chains, count = draw_shape(draws)
    pointwise = np.empty((chains, count, crowd.n_annotations), np.float32)
    log_likelihood = np.empty((chains, count))
    means, noted, recorded = {}, {}, {}
    evaluate(model)
    teller = None if "confusion" in [*anatomy.latent, *anatomy.recorded] else joint_twin(model, anatomy)
    if crowd.n_annotators * crowd.n_classes**2 > MOST_CELLS:
        teller = None  # many classes: single pairs can still be asked for
    with progress_bar("posterior", chains * count) as advance:
        for chain, draw in np.ndindex(chains, count):
            values = {name: value[chain, draw] for name, value in draws.items()}
            found = explain_crowd(model, crowd, values, anatomy, pointwise=True)
            for name, probability in found.posterior.items():
                means[name] = means.get(name, 0.0) + probability / (chains * count)
            for name in anatomy.noted:
                noted[name] = noted.get(name, 0.0) + found.recorded[name] / (chains * count)
            pointwise[chain, draw] = found.pointwise.cpu()
            log_likelihood[chain, draw] = found.log_likelihood
            tables = {name: found.recorded[name] for name in anatomy.recorded}
            if teller is not None:
                tables["confusion"] = mean_confusions(teller, crowd, values, anatomy)
            for name, table in tables.items():
                value = table.cpu().numpy()
                recorded.setdefault(name, np.empty((chains, count, *value.shape), value.dtype))[chain, draw] = value
            advance()
    means = {name: probability.cpu().numpy() for name, probability in means.items()}
    return dict(
        truth=means.pop("truth"),
        marginals=means,
        noted={name: value.cpu().numpy() for name, value in noted.items()},
        pointwise=pointwise,
        log_likelihood=log_likelihood,
        recorded=recorded,
    )


def joint_twin(model, anatomy):
    """The model, or its twin with one truth per item, in which the chance of a label given the truth can be read off.

    None where there is no such twin: a story without truth has no confusion matrices.
    """
    if "truth" in anatomy.enumerated:
        return model
    if getattr(model, "likelihood", None) != "per_annotation":
        return None
    twin = copy(model)  # shallow: the weights are the same tensors
    twin.likelihood = "joint"
    return twin


def mean_confusions(model, crowd, values, anatomy) -> torch.Tensor:
    """Confusion matrix of every annotator, averaged over the items they labelled: (annotators, classes, classes).

    An annotator without labels is asked about some items that others labelled.
    """
    total = torch.zeros(crowd.n_annotators, crowd.n_classes, crowd.n_classes, device=crowd.device)
    idle = np.flatnonzero(crowd.labels_per_annotator == 0)
    asked = np.unique(np.linspace(0, crowd.n_items - 1, min(crowd.n_items, ITEMS_FOR_THE_IDLE)).astype(int))
    strangers = crowd.pairs(np.tile(asked, len(idle)), np.repeat(idle, len(asked)))
    for part in [crowd, strangers] if len(idle) else [crowd]:
        for batch, tables in _tables_by_batch(model, part, values, anatomy):
            total.index_add_(0, batch.annotator[batch.mask], tables)
    return total / total.sum(-1, keepdim=True)


def label_confusions(model, crowd, values, anatomy) -> torch.Tensor:
    """Confusion matrix of every row of the table: (annotations, classes, classes)."""
    found = torch.zeros(crowd.n_annotations, crowd.n_classes, crowd.n_classes, device=crowd.device)
    for batch, tables in _tables_by_batch(model, crowd, values, anatomy):
        found[batch.row[batch.mask]] = tables
    return found


def _tables_by_batch(model, crowd, values, anatomy):
    """Items with labels, the longest first, as many at once as their padded matrices allow."""
    items = np.flatnonzero(crowd.labels_per_item)
    items = items[np.argsort(-crowd.labels_per_item[items], kind="stable")]
    start = 0
    while start < len(items):
        cells = crowd.labels_per_item[items[start]] * crowd.n_classes**2  # of one item, the longest that is left
        batch = crowd.batch(items[start : start + max(1, int(MOST_CELLS // cells))])
        yield batch, label_tables(model, batch, values, anatomy)[batch.mask]
        start += len(batch)


def draw_shape(draws) -> tuple[int, int]:
    """Chains and draws; a model without continuous sites has one of each."""
    return tuple(next(iter(draws.values())).shape[:2]) if draws else (1, 1)


def evaluate(model):
    """Networks out of training mode: no dropout, fixed batch statistics."""
    if isinstance(model, torch.nn.Module):
        model.eval()


def collect_weights(model) -> dict:
    """Everything trained that is not a sample site: a module's state, or the parameters a function registered."""
    if isinstance(model, torch.nn.Module):
        return {f"module.{name}": value.detach().cpu().clone() for name, value in model.state_dict().items()}
    store = pyro.get_param_store()
    own = [name for name in store.keys() if not name.startswith(("AutoNormal.", "_Point."))]
    return {f"param.{name}": store[name].detach().cpu().clone() for name in own}


def restore_weights(model, weights) -> None:
    """The other way: inside a workspace, before the model runs."""
    if isinstance(model, torch.nn.Module):
        prefix = "module."
        model.load_state_dict({name.removeprefix(prefix): value for name, value in weights.items()})
        return
    store = pyro.get_param_store()
    for name, value in weights.items():
        store[name.removeprefix("param.")] = value.to(torch.get_default_dtype())
