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

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import config_enumerate
from pyro.poutine.util import site_is_subsample
from torch.distributions import biject_to, constraints

from pyrocrowd.data.batch import ANNOTATION_DIM, ITEM_DIM


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
    trace = enumerated_trace(model, batch, rows_of_batch(values, batch, anatomy), anatomy.nesting)
    log_prior = local_log_prior = volume = torch.zeros(())
    item_scores, annotation_scores = [torch.zeros(1, 1)], []
    redrawn = None  # log P(truth) of a model that redraws the truth for every annotation
    item_dims, annotation_dims, deterministic = {}, {}, {}
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
            if "annotations" not in plates:
                item_scores.append(score)
            elif name == "truth":
                redrawn = score[..., :1, :]  # the same for every slot: the classifier does not see who labels
            else:
                annotation_scores.append(score)

    item_score, annotation_score = reduce(torch.add, item_scores), reduce(torch.add, annotation_scores)
    per = _sum_out(annotation_score, annotation_dims)
    prior = item_score if redrawn is None else item_score + redrawn
    score = prior + per.sum(ANNOTATION_DIM, keepdim=True)
    evidence = _sum_out(score, item_dims)
    posterior = (score - evidence).exp()
    if redrawn is not None:
        label_by_label = _plates(_sum_out(prior + per, item_dims))
    elif pointwise:
        label_by_label = _plates(evidence - _sum_out(score - per, item_dims))
    else:
        label_by_label = batch.mask.new_zeros(batch.mask.shape, dtype=score.dtype)
    label_by_label = torch.where(batch.mask, label_by_label, 0.0)
    likelihood = _plates(evidence)[0] if redrawn is None else label_by_label.sum(0)

    marginals = {name: _marginal(posterior, dim, item_dims)[0] for name, dim in item_dims.items()}
    if annotation_dims:
        inner = (annotation_score - per).exp() * posterior
        for name, dim in annotation_dims.items():
            marginals[name] = _marginal(inner, dim, item_dims | annotation_dims)
    truth = marginals.pop("truth", None)
    truth = deterministic.get("truth_probs") if truth is None else truth
    return Explained(truth, likelihood, label_by_label, marginals, log_prior, local_log_prior, volume, deterministic)


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
    deterministic : dict of torch.Tensor
        Of the last batch: the same in all of them for what is recorded outside `items`.
    """

    posterior: dict
    log_likelihood: float
    log_posterior: float
    pointwise: torch.Tensor
    deterministic: dict


def explain_crowd(model, crowd, values, anatomy, pointwise=False, batch_size=None) -> ExplainedCrowd:
    """`explain` for a whole crowd, with the answers back in the crowd's own order."""
    posterior, log_likelihood, local_log_prior = {}, 0.0, 0.0
    by_label = torch.zeros(crowd.n_annotations, device=crowd.device)
    for batch in crowd.batches(batch_size):
        found = explain(model, batch, values, anatomy, pointwise)
        rows = batch.row[batch.mask]
        by_label[rows] = found.pointwise[batch.mask]
        for name, probability in {"truth": found.truth, **found.marginals}.items():
            of_labels = name != "truth" and anatomy.enumerated[name] == "annotations"
            size = crowd.n_annotations if of_labels else crowd.n_items
            whole = posterior.setdefault(name, torch.zeros(size, probability.shape[-1], device=crowd.device))
            whole[rows if of_labels else batch.index] = probability[batch.mask] if of_labels else probability
        log_likelihood += float(found.evidence.sum())
        local_log_prior += float(found.local_log_prior)
    log_posterior = log_likelihood + local_log_prior + float(found.log_prior + found.log_volume)
    return ExplainedCrowd(posterior, log_likelihood, log_posterior, by_label, found.deterministic)


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
    others = [other for other in dims.values() if other != dim]
    probability = probability.sum(others, keepdim=True) if others else probability
    probability = probability.movedim(dim, -1)
    return probability.reshape(probability.shape[-3:])
