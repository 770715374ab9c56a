"""Small models that tests share: a classifier with confusion matrices, and a story with a noise source."""

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule

from pyrocrowd import Confused
from pyrocrowd.nets import backbone


class Classifier(PyroModule):
    """Truth from a network, labels from a confusion matrix per annotator."""

    def __init__(self, crowd, net="linear"):
        super().__init__()
        self.net = backbone(net, crowd)

    def forward(self, crowd):
        with crowd.annotators:
            prior = torch.eye(crowd.n_classes) * 2 + 0.2
            confusion = pyro.sample("confusion", dist.Dirichlet(prior).to_event(1))
        with crowd.items:
            truth = pyro.sample("truth", dist.Categorical(logits=self.net(crowd.features)))
            with crowd.annotations as annotator:
                pyro.sample("label", Confused(confusion, annotator, truth), obs=crowd.label)


def noise_sources(crowd, weight=0.3):
    """Every label comes from a matrix that all share, or from the annotator's own: two enumerated sites."""
    classes = crowd.n_classes
    common = pyro.sample("common", dist.Dirichlet(torch.ones(classes, classes)).to_event(1))
    with crowd.annotators:
        own = pyro.sample("own", dist.Dirichlet(torch.ones(classes, classes)).to_event(1))
    matrices = torch.cat([own, common.unsqueeze(-3)])
    with crowd.items:
        truth = pyro.sample("truth", dist.Categorical(torch.full((classes,), 1 / classes)))
        with crowd.annotations as annotator:
            source = pyro.sample("source", dist.Bernoulli(torch.tensor(weight)))
            which = torch.where(source > 0, crowd.n_annotators, annotator)
            pyro.sample("label", Confused(matrices, which, truth), obs=crowd.label)


def hard_items(crowd):
    """A continuous value for every item (its difficulty): local sites, mini-batches cut them."""
    classes = crowd.n_classes
    with crowd.items:
        ease = pyro.sample("ease", dist.Normal(1.0, 1.0))
        truth = pyro.sample("truth", dist.Categorical(torch.full((classes,), 1 / classes)))
        with crowd.annotations:
            right = torch.sigmoid(ease)
            scores = torch.full((classes,), 1.0) * ((1 - right) / (classes - 1)).unsqueeze(-1)
            probabilities = torch.where(torch.nn.functional.one_hot(truth, classes).bool(), right.unsqueeze(-1), scores)
            pyro.sample("label", dist.Categorical(probabilities), obs=crowd.label)
