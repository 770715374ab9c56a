"""Every test: double precision, a fixed seed, a clean parameter store, Pyro's own checks on."""

import matplotlib
import numpy as np
import pyro
import pytest
import torch

from pyrocrowd import Crowd
from pyrocrowd.data import sets

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def clean_room():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with pyro.validation_enabled(True):
        yield
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="session")
def real():
    """A real crowd by name, or a skip where the data are not on this machine."""

    def read(name, **options):
        try:
            return sets.real(name, **options)
        except FileNotFoundError as absent:
            pytest.skip(str(absent))

    return read


@pytest.fixture
def tiny():
    """3 items, 2 annotators, 2 classes; one item has a single label, so that a slot is padded."""
    return Crowd.from_matrix([[0, 1], [1, 1], [0, -1]], features=np.arange(6.0).reshape(3, 2))
