"""CoNAL: a label is spoiled by a confusion that all annotators share, or by the annotator's own.

Chu, Ma and Wang, "Learning from crowds by modeling common confusions", AAAI 2021, doi:10.1609/aaai.v35i7.16730,
arXiv:2012.13052.

The story:

1. All annotators share the matrix pi_g, and annotator r has pi_r;  rows ~ Dirichlet(a[c, :]), rows = true class.
2. Item i has the true class z_i ~ Categorical(p_i);  p_i = f(x_i) by a network, or one prevalence rho ~ Dirichlet(1)
   for all items where there are no features.
3. The noise source of each label is s_ir ~ Bernoulli(omega_ir): 1 is the common matrix, 0 the annotator's own.
4. y_ir ~ Categorical(pi_g[z_i, :]) if s_ir = 1, else Categorical(pi_r[z_i, :]).
5. omega_ir = sigmoid(tau u_r . v_i + b), with u_r = W_u e_r + b_u of the annotator (features, or who it is) and
   v_i = W_v x_i + b_v of the item, both of length one.

| symbol   | meaning                                              | site         |
|----------|------------------------------------------------------|--------------|
| pi_g     | the confusion matrix that all share                  | `common`     |
| pi_r     | confusion matrix of annotator r alone                | `individual` |
| W_g, W_r | their weights, where a soft-max makes them           | `common_weights`, `individual_weights` |
| rho      | how frequent each class is, without features         | `prevalence` |
| omega_r  | chance of the common matrix, with omega="annotator"  | `share`      |
| omega_ir | chance of the common matrix for one label            | `omega`      |
| z_i      | true class of item i                                 | `truth`      |
| s_ir     | noise source of one label                            | `source`     |
| y_ir     | label of annotator r for item i                      | `label`      |

Two likelihoods. `likelihood="joint"`: one truth per item, `sum_i log sum_c p_i[c] prod_r P(y_ir | c)`, with
`P(y = l | c) = omega pi_g[c, l] + (1 - omega) pi_r[c, l]`; the paper's appendix B. `likelihood="per_annotation"`: the
truth is redrawn for every label, `sum_(i,r) log sum_c p_i[c] P(y_ir | c)`, the cross-entropy that the paper trains.

Two links. `link="mixture"` is the story above. `link="softmax_linear"` is what the released code computes and the
paper's tables come from: the matrices are weights without constraint, W_g and W_r, and one soft-max follows their
mixture, `P(y_ir) = softmax(omega p_i W_g + (1 - omega) p_i W_r)`, a geometric mixture instead of an arithmetic one.
There is no source to infer in it. Its `joint` form puts the true class in place of p_i, so that the matrix of a pair
is `softmax(omega W_g + (1 - omega) W_r)` row by row. `omega=0` makes this link CrowdLayer (Rodrigues and Pereira 2018).
pi_g and pi_r are then the soft-max of each row of W_g and W_r, as the paper reports them.

omega. With both embeddings of length one and tau = 1, b = 0, as in the paper, omega is confined to [0.27, 0.73];
`temperature` and `bias` (numbers, or "learned") free it; `normalise="annotator"` is the released code's way on Music.
`omega="annotator"` has one chance per annotator, the default without features; `omega="annotation"` a free one per
label, which is saturated and over-fits (appendix B); a number fixes it, and 0 leaves only the annotators' own matrices.

Prior. Rows hold `strength` imagined labels, two thirds of them right; weights are Normal(2 I, 1 / sqrt(strength)). So
SVI finds a posterior. `strength=0` has no prior: the weights W, whose soft-max the matrices are, are trained like those
of a network, from 2 I as in the released code, and the loss is the paper's cross-entropy.

`apart` is the paper's lambda: `lambda sum_r ||W_g - W_r||` per label rewards common and own matrices that differ (1e-5
was best; with the mixture it is the norm of pi_g - pi_r). Here it is 0 unless asked for, as the prior already decides
what the labels leave open. A small constant stands under the root, because it starts at 0, where it has no gradient.

EM (mixture, joint) is exact: `q_i[c] t_irc`, the posterior of truth and source together, weighs every label, where the
paper multiplies two marginals, which can lose likelihood. Matrices, prevalence and omega per annotator or annotation
have closed forms; the networks of p_i and omega_ir take gradient steps that never lower the expected log-joint.

Differences from the paper and its code: v_i comes from one affine map, as in the paper (the code has two in a row);
the mean of the loss is over labels, as in the code (the paper divides by items).
"""

import math

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import nn
from torch.nn.functional import normalize

from pyrocrowd.distributions import Confused, imagined_labels
from pyrocrowd.errors import PyrocrowdError, at_least, one_of
from pyrocrowd.nets import backbone

START = 2.0  # weights begin at START x identity (released code)
UNDER_THE_ROOT = 1e-12


class Conal(PyroModule):
    """Each label follows a confusion that all share, or the annotator's own (Chu, Ma, Wang 2021)."""

    def __init__(
        self,
        crowd,
        net="mlp",
        likelihood="joint",
        link="mixture",
        omega="auto",
        embedding=20,
        normalise="both",
        temperature=1.0,
        bias=0.0,
        strength=1.0,
        apart=0.0,
    ):
        super().__init__()
        one_of("likelihood", likelihood, ("joint", "per_annotation"))
        one_of("link", link, ("mixture", "softmax_linear"))
        one_of("normalise", normalise, ("both", "annotator", "none"))
        at_least("strength", strength, 0)
        at_least("apart", apart, 0)
        has_features = crowd.feature_shape is not None
        if omega == "auto":
            omega = "pair" if has_features else "annotator"
        if isinstance(omega, str):
            one_of("omega", omega, ("pair", "annotator", "annotation"))
        elif not isinstance(omega, (int, float)) or not 0 <= omega <= 1:
            raise PyrocrowdError(f"omega must be auto, pair, annotator, annotation or a chance in [0, 1], not {omega}.")
        if omega == "pair" and not has_features:
            raise PyrocrowdError("omega=pair needs item features and the crowd has none: use annotator.")
        self.likelihood, self.link, self.omega_kind, self.normalise = likelihood, link, omega, normalise
        self.strength, self.apart, self.n_labels = strength, apart, crowd.n_annotations
        if link != "mixture" or apart:
            self.m_step = None  # the matrices have no closed form
        classes, people = crowd.n_classes, crowd.n_annotators
        self.net = backbone(net, crowd) if has_features else None
        if omega == "pair":
            described = people if crowd.annotator_features is None else crowd.annotator_features.shape[1]
            self.of_annotator = nn.Linear(described, embedding)
            self.of_item = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(crowd.feature_shape), embedding))
            self.temperature = _number_or_learned("temperature", temperature, 1.0)
            self.bias = _number_or_learned("bias", bias, 0.0)
        elif omega == "annotation":
            self.omega_logit = nn.Parameter(torch.zeros(crowd.n_annotations))
        if not strength:
            self.common_weights = nn.Parameter(START * torch.eye(classes))
            self.individual_weights = nn.Parameter(START * torch.eye(classes).repeat(people, 1, 1))

    def forward(self, crowd):
        common, individual = self.matrices(crowd)
        distance = ((individual - common).square().sum((-2, -1)) + UNDER_THE_ROOT).sqrt().sum()
        pyro.factor("distance", self.apart * self.n_labels * distance)
        if self.net is None:
            prevalence = pyro.sample("prevalence", dist.Dirichlet(torch.ones(crowd.n_classes)))
        if self.omega_kind == "annotator":
            with crowd.annotators:
                share = pyro.sample("share", dist.Beta(1.0, 1.0))
        with crowd.items:
            p = prevalence if self.net is None else self.net(crowd.features).softmax(-1)
            redrawn = self.likelihood == "per_annotation"
            if not redrawn:
                truth = pyro.sample("truth", dist.Categorical(p))
            with crowd.annotations as annotator:
                omega = share[annotator] if self.omega_kind == "annotator" else self.omega(crowd)
                omega = pyro.deterministic("omega", omega.expand(annotator.shape))
                if self.link == "mixture":
                    if redrawn:
                        truth = pyro.sample("truth", dist.Categorical(p))
                    source = pyro.sample("source", dist.Bernoulli(omega))
                    matrix = torch.where(source > 0, crowd.n_annotators, annotator)
                    label = Confused(torch.cat([individual, common.unsqueeze(0)]), matrix, truth)
                elif redrawn:
                    weight = omega.unsqueeze(-1)
                    own = torch.einsum("ic,sicl->sil", p.expand(len(crowd), -1), individual[annotator])
                    label = dist.Categorical(logits=weight * (p @ common) + (1 - weight) * own)
                else:
                    weight = omega[..., None, None]
                    pair = (weight * common + (1 - weight) * individual[annotator]).softmax(-1)
                    which = torch.arange(annotator.numel()).reshape(annotator.shape)
                    label = Confused(pair.flatten(0, 1), which, truth)
                pyro.sample("label", label, obs=crowd.label)
        if self.link == "softmax_linear" and redrawn:
            pyro.deterministic("truth_probs", p.expand(len(crowd), -1))

    def matrices(self, crowd):
        """pi_g and pi_r of the mixture, W_g and W_r of the other link: drawn from their prior, or trained."""
        classes, mixture = crowd.n_classes, self.link == "mixture"
        if mixture and self.strength:
            prior = dist.Dirichlet(imagined_labels(classes, self.strength)).to_event(1)
            common = pyro.sample("common", prior)
            with crowd.annotators:
                return common, pyro.sample("individual", prior)
        if self.strength:
            prior = dist.Normal(START * torch.eye(classes), self.strength**-0.5).to_event(2)
            common_weights = pyro.sample("common_weights", prior)
            with crowd.annotators:
                individual_weights = pyro.sample("individual_weights", prior)
        else:
            common_weights, individual_weights = self.common_weights, self.individual_weights
        common = pyro.deterministic("common", common_weights.softmax(-1), event_dim=2)
        with crowd.annotators:
            individual = pyro.deterministic("individual", individual_weights.softmax(-1), event_dim=2)
        return (common, individual) if mixture else (common_weights, individual_weights)

    def omega(self, crowd):
        """Chance of the common matrix for every label of a batch, (slot, items)."""
        if self.omega_kind == "annotation":
            logit = self.omega_logit
            known = not crowd.made_up and crowd.n_annotations == len(logit)  # a pair without label gets what is usual
            return torch.sigmoid(logit[crowd.row] if known else logit.mean())
        if self.omega_kind != "pair":
            return torch.tensor(float(self.omega_kind))
        features = crowd.annotator_features
        u = self.of_annotator(features) if features is not None else self.of_annotator.weight.T + self.of_annotator.bias
        v = self.of_item(crowd.features)
        u = u if self.normalise == "none" else normalize(u, dim=-1)
        v = normalize(v, dim=-1) if self.normalise == "both" else v
        return torch.sigmoid(self.temperature * (u[crowd.annotator] * v).sum(-1) + self.bias)

    def m_step(self, crowd, posterior):
        """Closed forms of the matrices, of the prevalence and of omega per annotator or annotation."""
        truth = posterior["truth"]
        item = torch.as_tensor(crowd.item, device=truth.device)
        both = posterior.get(("truth", "source"))
        if both is None:  # nothing is known of the sources yet
            omega = 0.5 if isinstance(self.omega_kind, str) else self.omega_kind
            both = torch.stack([(1 - omega) * truth[item], omega * truth[item]], -1)
        values = self._settle_matrices(crowd, both)
        is_common = both[..., 1].sum(-1)
        if self.net is None:
            items = truth.sum(0) + 1
            values["prevalence"] = items / items.sum()
        if self.omega_kind == "annotator":
            annotator = torch.as_tensor(crowd.annotator, device=truth.device)
            labels = torch.bincount(annotator, minlength=crowd.n_annotators)
            total = torch.bincount(annotator, is_common, minlength=crowd.n_annotators)
            values["share"] = (total + 1) / (labels + 2)
        elif self.omega_kind == "annotation":
            values["omega_logit"] = torch.logit(is_common, eps=torch.finfo(is_common.dtype).eps)
        return values

    def _settle_matrices(self, crowd, both):
        common = crowd.count(both[..., 1].contiguous(), per_label=True).sum(0)
        individual = crowd.count(both[..., 0].contiguous(), per_label=True)
        values = {}
        for name, counts in (("common", common), ("individual", individual)):
            counts = counts + (imagined_labels(crowd.n_classes, self.strength) if self.strength else 0)
            rows = counts.sum(-1, keepdim=True)
            shares = torch.where(rows > 0, counts / rows.clamp(min=1e-300), 1 / crowd.n_classes)
            shares = shares.clamp(min=torch.finfo(shares.dtype).tiny)
            values.update({name: shares} if self.strength else {f"{name}_weights": shares.log()})
        return values


def _number_or_learned(name, given, start):
    if given == "learned":
        return nn.Parameter(torch.tensor(start))
    if not isinstance(given, (int, float)):
        raise PyrocrowdError(f"{name} must be a number or learned, not {given!r}.")
    return float(given)
