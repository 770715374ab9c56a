"""The posterior as ArviZ has it. ArviZ 0.x takes groups as keywords and gives an `InferenceData`, 1.x takes one nested
dict and gives a `DataTree`; everything else is the same on both."""

from __future__ import annotations

import arviz
import numpy as np


def to_arviz(fit):
    """Groups posterior, log_likelihood (per annotation), observed_data, constant_data and, after NUTS, sample_stats.

    The log-likelihood of a label is taken given the other labels of its item (and given nothing where the model redraws
    the truth for every label), so that `az.loo` estimates how well a label is predicted when it is left out.
    """
    crowd = fit.crowd
    coords = {
        "item": plain_names(crowd.item_names),
        "annotator": plain_names(crowd.annotator_names),
        "class": plain_names(crowd.class_names),
        "true_class": plain_names(crowd.class_names),
        "given_label": plain_names(crowd.class_names),
        "annotation": np.arange(crowd.n_annotations),
    }
    constant = {
        "item_index": crowd.item,
        "annotator_index": crowd.annotator,
        "labels_per_item": crowd.labels_per_item,
        "labels_per_annotator": crowd.labels_per_annotator,
        "truth_probability": fit.truth,
    }
    dims = {
        "label": ["annotation"],
        "item_index": ["annotation"],
        "annotator_index": ["annotation"],
        "labels_per_item": ["item"],
        "labels_per_annotator": ["annotator"],
        "truth_probability": ["item", "class"],
    }
    if crowd.annotator_features is not None:
        constant["annotator_features"] = crowd.annotator_features
        dims["annotator_features"] = ["annotator", "annotator_feature"]
    if crowd.truth is not None:
        constant["known_truth"], dims["known_truth"] = crowd.truth, ["item"]
    for name, probability in fit.marginals.items():
        of_annotations = fit.anatomy.enumerated[name] == "annotations"
        constant[f"{name}_probability"] = probability
        dims[f"{name}_probability"] = ["annotation" if of_annotations else "item", f"{name}_value"]
    for name, value in fit.noted.items():
        of_annotations = fit.anatomy.noted[name] == "annotations"
        more = [f"{name}_dim_{place}" for place in range(value.ndim - 1)]
        constant[name], dims[name] = value, ["annotation" if of_annotations else "item", *more]
    for name, draws in fit.draws.items():
        dims[name] = _dims_of(name, draws.shape[2:], fit)
    groups = {
        "posterior": fit.draws,
        "log_likelihood": {"label": fit.pointwise},
        "observed_data": {"label": crowd.label},
        "constant_data": constant,
    }
    if fit.stats:
        groups["sample_stats"] = fit.stats
    groups = {name: group for name, group in groups.items() if group}
    attrs = {"model": fit.model.name, "engine": fit.engine.name, "seed": fit.seed}
    if int(arviz.__version__.split(".")[0]) == 0:
        data = arviz.from_dict(**groups, coords=coords, dims=dims)
        for group in data.groups():
            data[group].attrs.update(attrs)
        return data
    return arviz.from_dict(groups, coords=coords, dims=dims, attrs={name: attrs for name in groups})


def plain_names(names) -> np.ndarray:
    """Integers stay integers, everything else becomes fixed-width text, which NetCDF can hold."""
    names = np.asarray(names)
    return names if names.dtype.kind == "i" else names.astype(str)


def _dims_of(name, shape, fit) -> list[str]:
    """annotator or item first where the site stands in that plate; dimensions as long as the classes are classes."""
    dims, sizes = [], list(shape)
    in_annotators = name in fit.anatomy.in_annotators or (name == "confusion" and name not in fit.anatomy.latent)
    for is_in, dim, size in (
        (in_annotators, "annotator", fit.crowd.n_annotators),
        (name in fit.anatomy.local, "item", fit.crowd.n_items),
    ):
        if is_in and sizes and sizes[0] == size:
            dims.append(dim)
            sizes = sizes[1:]
    classes = fit.crowd.n_classes
    if sizes[-2:] == [classes, classes]:
        tail = ["true_class", "given_label"]
    elif sizes[-1:] == [classes]:
        tail = ["class"]
    else:
        tail = []
    middle = [f"{name}_dim_{place}" for place in range(len(sizes) - len(tail))]
    return dims + middle + tail
