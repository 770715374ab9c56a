"""One enumerated pass: the exact posterior of every discrete site, given values of the continuous ones.

Within an item the labels are independent given its true class, so the sums over all truths, and over all noise sources
inside them, factor:

    per[c, s, i]   = log sum_source P(label, source | truth = c)           one per annotation
    score[c, i]    = log P(truth = c) + sum_s per[c, s, i]
    evidence[i]    = logsumexp_c score[c, i]                               the item's marginal likelihood
    P(truth = c)   = exp(score[c, i] - evidence[i])

and the chance of a label given all other labels of its item is `evidence` with and without that label. This is what
`TraceEnum_ELBO` computes for any graph; the tests hold the two against each other and against brute force.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from types import SimpleNamespace

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import config_enumerate
from pyro.poutine.util import site_is_subsample
from torch.distributions import biject_to, constraints

from pyrocrowd.data.batch import ANNOTATION_DIM, ITEM_DIM

MOST_SCORES = 2e8  # scores, one for every annotation and class, that are held at once


@dataclass
class Explained:
    """What one pass over one batch finds; all logarithms are natural.

    Attributes
    ----------
    truth : torch.Tensor, shape (items, classes)
        Posterior of the true class.
    evidence : torch.Tensor, shape (items,)
        Log-likelihood of the labels of each item.
    pointwise : torch.Tensor, shape (slot, items)
        Log-probability of each label given the other labels of its item (given nothing else in a model that redraws
        the truth for every annotation); zero where padded, and where nobody asked for it.
    marginals : dict of torch.Tensor
        Posterior of every other enumerated site: (slot, items, values) or (items, values).
    joint : dict of torch.Tensor, shape (slot, items, classes, values)
        Joint posterior of the true class and each enumerated site of the annotations.
    log_prior : torch.Tensor, scalar
        Log-density of the continuous sites outside `items`, and of potentials there.
    local_log_prior : torch.Tensor, scalar
        The same for continuous sites inside `items`.
    log_volume : torch.Tensor, scalar
        Of all continuous sites, see `log_volume`.
    deterministic : dict of torch.Tensor
        What the model recorded with `pyro.deterministic`.
    """

    truth: torch.Tensor
    evidence: torch.Tensor
    pointwise: torch.Tensor
    marginals: dict
    joint: dict
    log_prior: torch.Tensor
    local_log_prior: torch.Tensor
    log_volume: torch.Tensor
    deterministic: dict


def explain(model, batch, values, anatomy, pointwise=False) -> Explained:
    """Sum every discrete site out of a batch.

    Parameters
    ----------
    model : callable
        A bound model: a function of one batch.
    batch : Batch
    values : dict of torch.Tensor
        A value for every continuous site; those inside `items` cover all items of the crowd.
    anatomy : pyrocrowd.check.Anatomy
    pointwise : bool
        Whether to work out the log-probability of every single label, which doubles the cost.
    """
    scores = _score(model, batch, values, anatomy)
    item_dims, annotation_dims = scores.item_dims, scores.annotation_dims
    per = _sum_out(scores.annotation, annotation_dims)
    score = scores.item + per.sum(ANNOTATION_DIM, keepdim=True)
    evidence = _sum_out(score, item_dims)
    posterior = (score - evidence).exp()
    if anatomy.redraws_truth:
        label_by_label = _plates(_sum_out(scores.item + per, item_dims))
    elif pointwise:
        label_by_label = _plates(evidence - _sum_out(score - per, item_dims))
    else:
        label_by_label = batch.mask.new_zeros(batch.mask.shape, dtype=score.dtype)
    label_by_label = torch.where(batch.mask, label_by_label, 0.0)
    likelihood = label_by_label.sum(0) if anatomy.redraws_truth else _plates(evidence)[0]

    marginals = {name: _marginal(posterior, dim, item_dims)[0] for name, dim in item_dims.items()}
    joint = {}
    if annotation_dims:
        if anatomy.redraws_truth:  # every label has a truth of its own, and only that one explains its source
            posterior = (scores.item + per - _sum_out(scores.item + per, item_dims)).exp()
        inner = (scores.annotation - per).exp() * posterior
        for name, dim in annotation_dims.items():
            joint[name] = _with_truth(inner, dim, item_dims | annotation_dims)
            marginals[name] = joint[name].sum(-2)
    truth = marginals.pop("truth", None)
    truth = scores.deterministic.get("truth_probs") if truth is None else truth
    return Explained(
        truth=truth,
        evidence=likelihood,
        pointwise=label_by_label,
        marginals=marginals,
        joint=joint,
        log_prior=scores.log_prior,
        local_log_prior=scores.local_log_prior,
        log_volume=scores.log_volume,
        deterministic=scores.deterministic,
    )


def believe(model, batch, values, anatomy, truth=None) -> SimpleNamespace:
    """The weights that the E-step gives to every joint value of the discrete sites, for `expected_log_joint`.

    `truth` (items, classes), where given, stands in for the posterior of the true class: where an EM starts.
    """
    scores = _score(model, batch, values, anatomy)
    per = _sum_out(scores.annotation, scores.annotation_dims)
    score = scores.item + per.sum(ANNOTATION_DIM, keepdim=True)
    item = (score - _sum_out(score, scores.item_dims)).exp()
    if truth is not None:
        given = truth.T.reshape(truth.shape[-1], *(1,) * (-scores.item_dims["truth"] - 2), len(truth))
        item = given * item / _keep(item, {scores.item_dims["truth"]}, scores.item_dims).clamp(min=1e-300)
    annotation = (scores.annotation - per).exp() * item * batch.mask
    return SimpleNamespace(item=item, annotation=annotation)


def expected_log_joint(model, batch, values, anatomy, beliefs) -> torch.Tensor:
    """What the M-step of an EM raises: the expectation, under fixed beliefs, of log P(labels, discrete sites, values).

    Gradients flow into the model's networks and parameters.
    """
    scores = _score(model, batch, values, anatomy)
    expected = (beliefs.item * scores.item).sum() + (beliefs.annotation * scores.annotation).sum()
    return expected + scores.log_prior + scores.local_log_prior


def label_tables(model, batch, values, anatomy) -> torch.Tensor:
    """Confusion matrix of every annotation, all noise sources summed out: (slot, items, true class, label).

    `P(label = l | truth = c)` for the item and the annotator at hand, whatever the model makes it depend on.
    """
    scores = _score(model, batch, values, anatomy)
    others = {name: dim for name, dim in scores.item_dims.items() if name != "truth"}
    prior = scores.item - _sum_out(scores.item, others)  # further discrete sites of the item count with their prior
    columns = []
    for label in range(batch.n_classes):
        score = scores.annotation_but_label + scores.label.log_prob(torch.full_like(batch.annotator, label))
        score = _sum_out(_sum_out(score, scores.annotation_dims) + prior, others)
        score = score.movedim(scores.item_dims["truth"], -1)
        columns.append(score.reshape(score.shape[-3:]))
    return torch.stack(columns, -1).exp()


def _score(model, batch, values, anatomy) -> SimpleNamespace:
    """Log-probabilities of one enumerated run, added up by where they belong: to the item, to the annotation, to all.

    `item` has the truth on a dimension of its own, also where a model redraws it for every label.
    """
    trace = enumerated_trace(model, batch, rows_of_batch(values, batch, anatomy), anatomy.nesting)
    log_prior = local_log_prior = volume = torch.zeros(())
    item_scores, annotation_scores, label_score = [torch.zeros(1, 1)], [torch.zeros(1, 1)], torch.zeros(1, 1)
    item_dims, annotation_dims, deterministic, label = {}, {}, {}, None
    for name, site in sample_sites(trace):
        plates = {frame.name for frame in site["cond_indep_stack"]}
        if name in values:
            volume = volume + log_volume(site["fn"], site["value"]).sum()
        if site["infer"].get("_deterministic"):
            deterministic[name] = site["value"]
            continue
        score = site["fn"].log_prob(site["value"])
        if "items" not in plates:
            log_prior = log_prior + scale_and_mask(score, site["scale"], site["mask"]).sum()
        elif name in values:
            local_log_prior = local_log_prior + score.sum()
        else:
            dim = site["infer"].get("_enumerate_dim")
            if dim is not None:
                (annotation_dims if "annotations" in plates and name != "truth" else item_dims)[name] = dim
            elif isinstance(site["mask"], torch.Tensor):
                score = torch.where(site["mask"], score, 0.0)
            if name == "label":
                label, label_score = site["fn"], score
            elif "annotations" not in plates:
                item_scores.append(score)
            elif name == "truth":
                item_scores.append(score[..., :1, :])  # the same in every slot: the classifier does not see who labels
            else:
                annotation_scores.append(score)
    annotation = reduce(torch.add, annotation_scores)
    return SimpleNamespace(
        item=reduce(torch.add, item_scores),
        annotation=annotation + label_score,
        annotation_but_label=annotation,
        label=label,
        item_dims=item_dims,
        annotation_dims=annotation_dims,
        log_prior=log_prior,
        local_log_prior=local_log_prior,
        log_volume=volume,
        deterministic=deterministic,
    )


@dataclass
class ExplainedCrowd:
    """The same for all items, batch by batch.

    Attributes
    ----------
    posterior : dict of torch.Tensor
        Of `truth` and of every other enumerated site, (items or annotations, values), in the order of the crowd.
    log_likelihood, log_posterior : float
        Of the labels alone, and with the prior of the values in the unconstrained space.
    pointwise : torch.Tensor, shape (annotations,)
        Zero unless asked for.
    recorded : dict of torch.Tensor
        What the model recorded with `pyro.deterministic`: outside the plates as it is, inside `items` or `annotations`
        one row for each of them.
    """

    posterior: dict
    log_likelihood: float
    log_posterior: float
    pointwise: torch.Tensor
    recorded: dict


def explain_crowd(model, crowd, values, anatomy, pointwise=False, joint=False, batch_size=None) -> ExplainedCrowd:
    """`explain` for a whole crowd, with the answers back in the crowd's own order.

    With `joint` the posterior also holds, under `("truth", site)`, that of the true class together with each discrete
    site of the annotations, (annotations, classes, values): what an M-step needs.
    """
    posterior, recorded, log_likelihood, local_log_prior = {}, {}, 0.0, 0.0
    by_label = torch.zeros(crowd.n_annotations, device=crowd.device)
    if batch_size is None and crowd.n_annotations * crowd.n_classes > MOST_SCORES:  # else all items at once
        batch_size = max(1, int(crowd.n_items * MOST_SCORES / (crowd.n_annotations * crowd.n_classes)))
    for batch in crowd.batches(batch_size):
        found = explain(model, batch, values, anatomy, pointwise)
        by_label[batch.row[batch.mask]] = found.pointwise[batch.mask]
        _put(posterior, "truth", "items", found.truth, crowd, batch)
        for name, probability in found.marginals.items():
            _put(posterior, name, anatomy.enumerated[name], probability, crowd, batch)
        for name, probability in found.joint.items() if joint else ():
            _put(posterior, ("truth", name), "annotations", probability, crowd, batch)
        for name, value in found.deterministic.items():
            if name in anatomy.noted:
                _put(recorded, name, anatomy.noted[name], value, crowd, batch)
            elif name in anatomy.recorded:
                recorded[name] = value
        log_likelihood += float(found.evidence.sum())
        local_log_prior += float(found.local_log_prior)
    log_posterior = log_likelihood + local_log_prior + float(found.log_prior + found.log_volume)
    return ExplainedCrowd(posterior, log_likelihood, log_posterior, by_label, recorded)


def _put(whole, name, place, part, crowd, batch):
    """Lay what a batch says of its items, or of its annotations, on their rows of the crowd."""
    of_labels = place == "annotations"
    if of_labels:
        part = part.expand(*batch.mask.shape, *part.shape[2:])[batch.mask]
    if name not in whole:
        size = crowd.n_annotations if of_labels else crowd.n_items
        whole[name] = torch.zeros(size, *part.shape[1:], dtype=part.dtype, device=crowd.device)
    whole[name][batch.row[batch.mask] if of_labels else batch.index] = part


def enumerated_trace(model, batch, values, nesting):
    """The trace of a model with its discrete sites enumerated and its continuous ones set to `values`."""
    story = config_enumerate(model)
    story = poutine.condition(story, data=values) if values else story
    with poutine.enum(first_available_dim=-1 - nesting):
        return poutine.trace(story).get_trace(batch)


def sample_sites(trace):
    """Every sample site of a trace but the plates' own."""
    return [
        (name, site) for name, site in trace.nodes.items() if site["type"] == "sample" and not site_is_subsample(site)
    ]


def rows_of_batch(values, batch, anatomy) -> dict:
    """Values of sites inside `items` cut down to the items of the batch."""
    if not anatomy.local:
        return values
    return {
        name: value.index_select(ITEM_DIM - anatomy.local[name], batch.index) if name in anatomy.local else value
        for name, value in values.items()
    }


def log_volume(distribution, value) -> torch.Tensor:
    """log |d value / d unconstrained|: what turns a density of a site into that of its unconstrained twin.

    Point estimates are modes of the latter. There a Dirichlet(a) prior adds `a` to every count, also where a < 1, and
    the mode is what the posterior mean is given the counts; a mode on the simplex itself would subtract one and end in
    its corners. On the simplex the volume is the product of the shares.
    """
    support = distribution.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real:
        return torch.zeros(())
    if support is constraints.simplex:
        volume, dims = value.log().sum(-1), distribution.event_dim - 1
    else:
        transform = biject_to(support)
        volume = transform.log_abs_det_jacobian(transform.inv(value), value)
        dims = distribution.event_dim - (value.dim() - volume.dim())
    return volume.flatten(volume.dim() - dims).sum(-1) if dims else volume


def _sum_out(score, dims):
    for dim in dims.values():
        score = score.logsumexp(dim, keepdim=True)
    return score


def _plates(score):
    """Drop the enumeration dimensions, all of size one by now."""
    return score.reshape(score.shape[-2:])


def _marginal(probability, dim, dims):
    """Sum over all enumerated sites but one and put its values last: (slot, items, values)."""
    probability = _keep(probability, {dim}, dims).movedim(dim, -1)
    return probability.reshape(probability.shape[-3:])


def _with_truth(probability, dim, dims):
    """Sum over all enumerated sites but one and the truth: (slot, items, classes, values)."""
    truth = dims.get("truth")
    probability = _keep(probability, {dim, truth}, dims)
    if truth is None:
        return probability.movedim(dim, -1).reshape(*probability.shape[-2:], 1, -1)
    probability = probability.movedim((truth, dim), (-2, -1))
    return probability.reshape(probability.shape[-4:])


def _keep(probability, kept, dims):
    """Sum over all enumerated sites but the kept ones."""
    others = [dim for dim in dims.values() if dim not in kept]
    return probability.sum(others, keepdim=True) if others else probability
