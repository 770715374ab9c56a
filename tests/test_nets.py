"""Backbones by name: what they accept, what they give, what they refuse."""

import builtins

import numpy as np
import pytest
import torch

from pyrocrowd import Crowd, PyrocrowdError
from pyrocrowd.nets import Standardise, backbone


def crowd_with(shape):
    features = np.random.default_rng(0).normal(3.0, 2.0, size=(8, *shape))
    return Crowd.from_matrix([[0, 1], [1, 2]] * 4, features=features)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("linear", (5,)),
        ("mlp", (5,)),
        ("mlp", (4, 4)),
        ("cnn", (12, 12)),
        ("cnn", (3, 12, 12)),
        ("resnet18", (3, 32, 32)),
    ],
)
def test_a_backbone_gives_one_score_per_class_that_gradients_reach(name, shape):
    crowd = crowd_with(shape)
    net = backbone(name, crowd).double()
    scores = net(crowd.batch().features)
    assert scores.shape == (8, 3)
    scores.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in net.parameters())


def test_vectors_are_standardised_by_the_crowd_and_the_statistics_are_saved():
    crowd = crowd_with((5,))
    net = backbone("linear", crowd)
    layer = next(layer for layer in net if isinstance(layer, Standardise))
    inside = layer(crowd.batch().features)
    assert torch.allclose(inside.mean(0), torch.zeros(5), atol=1e-9)
    assert torch.allclose(inside.std(0), torch.ones(5))
    assert {"1.mean", "1.deviation"} <= set(net.state_dict())


def test_a_constant_feature_does_no_harm():
    crowd = Crowd.from_matrix([[0, 1], [1, 1]], features=np.ones((2, 3)))
    assert torch.isfinite(backbone("linear", crowd)(crowd.batch().features)).all()


def test_a_module_of_ones_own_is_copied():
    mine = torch.nn.Linear(5, 3)
    copy = backbone(mine, crowd_with((5,)))
    assert copy is not mine and torch.equal(copy.weight, mine.weight)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("resnet19", (3, 32, 32), "Did you mean 'resnet1"),
        ("cnn", (5,), "needs images"),
        ("vgg16", (5,), "needs images"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(name, shape, sentence):
    with pytest.raises(PyrocrowdError, match=sentence):
        backbone(name, crowd_with(shape))


def test_a_torchvision_that_does_not_match_torch_gives_one_sentence_and_the_rest_works(monkeypatch):
    real_import = builtins.__import__

    def broken(name, *arguments, **options):
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(PyrocrowdError, match="install torch and torchvision together"):
        backbone("resnet18", crowd_with((3, 32, 32)))
    assert backbone("mlp", crowd_with((5,))) is not None
