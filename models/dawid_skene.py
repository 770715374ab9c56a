"""Dawid-Skene: every annotator has a confusion matrix of their own.

Dawid and Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm", Applied Statistics 28
(1979), doi:10.2307/2346806. With priors on its parameters it is the Bayesian classifier combination of Kim and
Ghahramani (2012).

The story:

1. Classes occur with prevalence rho ~ Dirichlet(1).
2. Annotator r, shown an item of class c, answers l with probability pi_r[c, l];  pi_r[c, :] ~ Dirichlet(a[c, :]).
3. Item i has the true class z_i ~ Categorical(rho).
4. Each label of it is y_ir ~ Categorical(pi_r[z_i, :]).

| symbol | meaning                                       | site         |
|--------|-----------------------------------------------|--------------|
| rho    | how frequent each class is                    | `prevalence` |
| pi_r   | confusion matrix of annotator r, rows = truth | `confusion`  |
| z_i    | true class of item i                          | `truth`      |
| y_ir   | label of annotator r for item i               | `label`      |

Two likelihoods. `likelihood="joint"`, the paper's: one truth per item, shared by all its labels,
`sum_i log sum_c rho[c] prod_r pi_r[c, y_ir]`. `likelihood="per_annotation"`: the truth is redrawn for every label,
`sum_(i,r) log sum_c rho[c] pi_r[c, y_ir]`, the cross-entropy that the neural papers optimise. Without features the
second cannot tell annotators from prevalence and is here for comparison only; EM is exact for the first.

Prior. `a[c, l] = 1 + strength * 1[c = l]`: annotators are believed better than chance, by `strength` imagined right answers
per class (the default makes the diagonal 4 and the rest 1, a common choice for this model). Giving `smoothing` instead makes it the same for every cell, `a = 1 + smoothing`: then the EM is the classic one
that adds `smoothing` to every count (0: maximum likelihood). Each engine uses the same prior, so EM and MAP have the same
optimum: `pi_r[c, l] = (n_r[c, l] + a[c, l] - 1) / sum_l' (...)`, with n_r the expected counts.

EM starts from soft majority vote with an M-step, as the paper does. A row without any count is uniform.
"""

import pyro
import pyro.distributions as dist
import torch

from pyrocrowd.distributions import Confused


def dawid_skene(crowd, strength=3.0, smoothing=None, likelihood="joint"):
    """Every annotator has a confusion matrix (Dawid and Skene 1979); fitted by EM, MAP, SVI or NUTS."""
    prevalence = pyro.sample("prevalence", dist.Dirichlet(torch.ones(crowd.n_classes)))
    with crowd.annotators:
        prior = dist.Dirichlet(1 + pseudo_counts(crowd.n_classes, strength, smoothing))
        confusion = pyro.sample("confusion", prior.to_event(1))
    with crowd.items:
        if likelihood == "joint":
            truth = pyro.sample("truth", dist.Categorical(prevalence))
        with crowd.annotations as annotator:
            if likelihood == "per_annotation":
                truth = pyro.sample("truth", dist.Categorical(prevalence))
            pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)


def m_step(crowd, posterior, strength, smoothing):
    """The mode of `prevalence` and `confusion` given the posterior of the truth, in closed form."""
    truth = posterior["truth"]
    counts = crowd.count(truth) + pseudo_counts(crowd.n_classes, strength, smoothing)
    rows = counts.sum(-1, keepdim=True)
    confusion = torch.where(rows > 0, counts / rows, 1 / crowd.n_classes)
    return {"prevalence": truth.mean(0), "confusion": confusion}


def pseudo_counts(classes, strength, smoothing):
    """Imagined answers behind the prior: some right ones, or as many in every cell."""
    return strength * torch.eye(classes) if smoothing is None else torch.full((classes, classes), float(smoothing))
