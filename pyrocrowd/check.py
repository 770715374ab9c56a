"""One dry run of a model. Every mistake that a model author can make is found, and named, here."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import pyro
import torch
from pyro import poutine

from pyrocrowd.data.batch import PLATE_NESTING
from pyrocrowd.errors import PyrocrowdError
from pyrocrowd.infer.exact import enumerated_trace, sample_sites

CONTRACT = "A model draws `truth` in `crowd.items` and `label` in `crowd.annotations`."

SHAPE_WORDS = ("hape mismatch", "must match the size", "size mismatch", "cannot be multiplied", "not broadcastable")


@dataclass
class Anatomy:
    """What the dry run saw of a model.

    Attributes
    ----------
    latent : dict
        Continuous sites: name -> shape in a batch of the dry run.
    local : dict
        Those inside `items`: name -> number of event dimensions.
    in_annotators : dict
        What is drawn or recorded inside `annotators`: name -> number of event dimensions.
    enumerated : dict
        Discrete sites that are summed out: name -> "items" or "annotations".
    recorded : list of str
        What it records outside `items` with `pyro.deterministic`: one value for the whole crowd or per annotator.
    noted : dict
        What it records inside them: name -> "items" or "annotations".
    nesting : int
        Number of dimensions that the plates take.
    reads_features, redraws_truth : bool
    """

    latent: dict = field(default_factory=dict)
    local: dict = field(default_factory=dict)
    in_annotators: dict = field(default_factory=dict)
    enumerated: dict = field(default_factory=dict)
    recorded: list = field(default_factory=list)
    noted: dict = field(default_factory=dict)
    nesting: int = PLATE_NESTING
    reads_features: bool = False
    redraws_truth: bool = False


def examine(model, crowd, name="the model") -> Anatomy:
    """Run a bound model once on a few items and read its anatomy off the trace.

    Raises
    ------
    PyrocrowdError
        With one sentence for every way in which the model breaks the contract.
    """
    items = np.flatnonzero(crowd.labels_per_item)[:6]
    batch = crowd.batch(items if len(items) else np.arange(min(6, crowd.n_items)))
    with pyro.get_param_store().scope(), pyro.validation_enabled(True), torch.no_grad():
        trace = _dry_run(model, batch, name)
    anatomy, problems = _read_trace(trace, batch)
    anatomy.reads_features = batch.features_were_read
    if problems:
        raise PyrocrowdError([f"{name}: {problem}" for problem in problems])
    return anatomy


def _dry_run(model, batch, name):
    # A plain run first: it finds the dimensions that the model's own plates take, which enumeration must leave free.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = poutine.trace(model).get_trace(batch)
            nesting = max(
                [PLATE_NESTING] + [-frame.dim for _, site in sample_sites(plain) for frame in _vectorised(site)]
            )
            trace = enumerated_trace(model, batch, {}, nesting)
            trace.compute_log_prob()
    except PyrocrowdError as error:  # Pyro raises it anew with the trace's shapes behind it: the first one says it all
        raise (error.__cause__ if isinstance(error.__cause__, PyrocrowdError) else error) from None
    except Exception as error:  # whatever a model raises is the author's to mend: say where and what, in one sentence
        raise PyrocrowdError(f"{name}: {_in_plain_words(error)}") from error
    trace.graph_nesting = nesting
    return trace


def _read_trace(trace, batch):
    anatomy, problems = Anatomy(nesting=trace.graph_nesting), []
    sites = dict(sample_sites(trace))
    classes = batch.n_classes
    for name, site in sites.items():
        frames = {frame.name: frame for frame in _vectorised(site)}
        if site["infer"].get("_deterministic"):
            if name != "truth_probs":
                _note(anatomy, name, site, frames, batch)
        elif site["is_observed"]:
            if torch.isnan(site["log_prob"]).any():
                problems.append(f"the log-probability of `{name}` is NaN in the first run: look at its parameters.")
        elif site["infer"].get("_enumerate_dim") is not None:
            problems += _discrete_problems(name, frames)
            anatomy.enumerated[name] = "annotations" if "annotations" in frames else "items"
        elif not site["fn"].support.is_discrete:
            problems += _continuous_problems(name, frames)
            anatomy.latent[name] = tuple(site["value"].shape)
            if "items" in frames:
                anatomy.local[name] = site["fn"].event_dim
            if "annotators" in frames:
                anatomy.in_annotators[name] = site["fn"].event_dim
        elif name != "label":
            problems.append(
                f"`{name}` is discrete and cannot be summed out ({type(site['fn']).__name__}): use a distribution with "
                "finitely many values."
            )
        strange = [frame for frame in frames if frame not in ("items", "annotations", "annotators")]
        if strange and ("items" in frames or site["infer"].get("_enumerate_dim") is not None):
            problems.append(
                f"`{name}` stands in a plate {strange[0]!r} of its own: inside the crowd only `crowd.items` and "
                "`crowd.annotations` may hold it (a flat plate over annotations gives silently wrong sums)."
            )
    problems += _label_problems(sites.get("label"), batch)
    problems += _truth_problems(sites, classes, len(batch))
    anatomy.redraws_truth = anatomy.enumerated.get("truth") == "annotations"
    return anatomy, problems


def _note(anatomy, name, site, frames, batch):
    """What a model records; a value that depends on an enumerated site has no row of its own and is left out."""
    shape = tuple(site["fn"].batch_shape)
    if "items" not in frames:
        anatomy.recorded.append(name)
        if "annotators" in frames:
            anatomy.in_annotators[name] = site["fn"].event_dim
    elif "annotations" in frames and shape == tuple(batch.mask.shape):
        anatomy.noted[name] = "annotations"
    elif "annotations" not in frames and shape == (len(batch),):
        anatomy.noted[name] = "items"


def _label_problems(label, batch):
    if label is None:
        return [f"it draws no site `label`. {CONTRACT}"]
    frames = {frame.name for frame in _vectorised(label)}
    if not {"items", "annotations"} <= frames:
        return [
            "`label` must be drawn inside `crowd.annotations` inside `crowd.items`; a flat plate that looks up "
            "`truth[item]` gives silently wrong sums."
        ]
    if not label["is_observed"]:
        return ["`label` is not observed: draw it with obs=crowd.label."]
    if label["value"] is not batch.label:
        return ["`label` is observed with other data than crowd.label."]
    return []


def _truth_problems(sites, classes, size):
    truth, recorded = sites.get("truth"), sites.get("truth_probs")
    if truth is None and recorded is None:
        return [
            "it has neither a site `truth` nor a recorded `truth_probs`: draw pyro.sample('truth', ...) in "
            "crowd.items, or record the class probabilities with pyro.deterministic('truth_probs', ...)."
        ]
    if recorded is not None:
        shape = tuple(recorded["value"].shape)
        wanted = (size, classes)
        return (
            [] if shape == wanted else [f"`truth_probs` has shape {shape} where (items, classes) = {wanted} belongs."]
        )
    if truth["infer"].get("_enumerate_dim") is None:
        return ["`truth` must be a Categorical that is not observed: it is what pyrocrowd finds out."]
    values = truth["value"].numel()
    if values != classes:
        return [f"`truth` has {values} values and the crowd has {classes} classes."]
    frames = {frame.name for frame in _vectorised(truth)}
    return [] if "items" in frames else ["`truth` must be drawn inside `crowd.items`."]


def _discrete_problems(name, frames):
    if name in ("truth", "label") or "items" in frames:
        return []
    where = "each annotator" if "annotators" in frames else "the whole crowd"
    return [
        f"`{name}` is one discrete value for {where}, which cannot be summed out together with `truth`: make it a "
        "probability (a Dirichlet weight), or draw it inside crowd.items or crowd.annotations."
    ]


def _continuous_problems(name, frames):
    if "annotations" in frames:
        return [f"`{name}` is continuous, with a value for every single annotation: draw it in items or annotators."]
    return []


def _vectorised(site):
    return [frame for frame in site["cond_indep_stack"] if frame.vectorized]


def _in_plain_words(error: Exception) -> str:
    """Pyro's and torch's messages, led by what they mean for a model author."""
    text = " ".join(str(error).split())
    if "Multiple sample sites named" in text:
        return f"two sites have the same name: {text}."
    if any(words in text for words in SHAPE_WORDS):
        return (
            "shapes do not fit: inside crowd.items a tensor ends in (items,), inside crowd.annotations in "
            f"(slots, items). {type(error).__name__}: {text}"
        )
    if "to satisfy the constraint" in text:
        return f"a distribution is given an impossible parameter: {text.split(', but found')[0]}."
    return f"it does not run: {type(error).__name__}: {text}"
