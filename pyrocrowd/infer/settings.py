"""The engines as settings: what each can be told, and nothing that needs torch, so that `--help` answers at once.

From cheap to exact: `EM` (closed form, seconds), `MAP` (gradients, trains networks), `SVI` (a posterior for every
continuous site), `NUTS` (the reference for small data). All of them return the same `Fit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from pyrocrowd.errors import PyrocrowdError


def setting(default, doc, **limits):
    """A field with its sentence of help, and the limits that its value must keep."""
    return field(default=default, metadata={"doc": doc, **limits})


class Engine:
    """What all engines share: their limits are checked when they are made."""

    name: str

    def __post_init__(self):
        problems = []
        for one in fields(self):
            value, limits = getattr(self, one.name), one.metadata
            if value is None:
                continue
            if isinstance(value, float) and math.isnan(value):
                problems.append(f"{self.name}: {one.name} must be a number, not NaN.")
            if "below" in limits and value >= limits["below"]:
                problems.append(f"{self.name}: {one.name} must be below {limits['below']}, not {value}.")
            if "least" in limits and value < limits["least"]:
                problems.append(f"{self.name}: {one.name} must be at least {limits['least']}, not {value}.")
            if "above" in limits and not value > limits["above"]:
                problems.append(f"{self.name}: {one.name} must be above {limits['above']}, not {value}.")
            if "choices" in limits and value not in limits["choices"]:
                choices = ", ".join(limits["choices"])
                problems.append(f"{self.name}: {one.name} must be one of {choices}, not {value!r}.")
        if problems:
            raise PyrocrowdError(problems)

    def settings(self) -> dict:
        """The settings that can be written down (a validation set cannot)."""
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.metadata.get("hidden")}


@dataclass
class EM(Engine):
    """Expectation-maximisation: an exact E-step for any model, the model's own `m_step`; monotone."""

    name = "em"
    max_iter: int = setting(1000, "most iterations", least=1)
    tol: float | None = setting(
        None, "stop when the log-posterior rises by less than this (default: 1e-12 for every label)", least=0
    )
    restarts: int = setting(1, "number of starts, the first from soft majority vote; the best is kept", least=1)
    network_steps: int = setting(20, "gradient steps of the networks, if there are any, in each iteration", least=1)
    learning_rate: float = setting(0.01, "step size at the start (em: of the networks)", above=0)

    def run(self, task):
        from pyrocrowd.infer.em import run

        return run(self, task)


SCHEDULES = ("cosine", "exponential", "constant")
OPTIMIZERS = ("adam", "adamw", "sgd")
SELECTIONS = ("last", "best", "held_out")


@dataclass
class SVI(Engine):
    """Variational inference: a normal guide on the continuous sites, the discrete ones summed out."""

    name = "svi"
    steps: int = setting(2000, "gradient steps", least=1)
    epochs: int | None = setting(None, "passes over the items, instead of steps", least=1)
    batch_size: int | None = setting(None, "items per step (default: all up to 20,000, then 2,048)", least=1)
    learning_rate: float = setting(0.02, "step size at the start", above=0)
    schedule: str = setting("cosine", "how the step size falls", choices=SCHEDULES)
    optimizer: str = setting("adam", "which optimiser", choices=OPTIMIZERS)
    momentum: float = setting(0.9, "momentum of sgd", least=0, below=1)
    restart_epochs: int | None = setting(None, "passes after which the optimiser forgets its moments", least=1)
    weight_decay: float = setting(0.0, "weight decay of the networks", least=0)
    clip: float = setting(10.0, "largest gradient norm, of the loss per annotation", above=0)
    patience: int = setting(5, "stop after this many rounds of 50 steps without progress (0: never)", least=0)
    tolerance: float = setting(1e-5, "relative fall of the loss that counts as progress", least=0)
    select: str = setting(
        "last", "which state is kept: last, best on the validation set, or best on held_out labels", choices=SELECTIONS
    )
    held_out: float = setting(0.1, "share of labels held out when they select", above=0, below=1)
    validation: Any = field(default=None, repr=False, metadata={"hidden": True, "doc": "crowd with features and truth"})
    test: Any = field(default=None, repr=False, metadata={"hidden": True, "doc": "the same, watched and never used"})
    draws: int = setting(400, "posterior draws taken from the guide at the end (fewer on a large crowd)", least=1)
    particles: int = setting(1, "Monte Carlo samples per step", least=1)

    def run(self, task):
        from pyrocrowd.infer.svi import run

        return run(self, task)


@dataclass
class MAP(SVI):
    """The same loop with point estimates: networks are trained here, and the loss is the papers' cross-entropy."""

    name = "map"
    learning_rate: float = setting(0.01, "step size at the start", above=0)
    draws: int = field(default=1, init=False, repr=False, metadata={"hidden": True, "doc": "a point is one draw"})
    particles: int = field(default=1, init=False, repr=False, metadata={"hidden": True, "doc": "nothing is sampled"})


@dataclass
class NUTS(Engine):
    """Hamiltonian Monte Carlo on the continuous sites, the discrete ones summed out; for small crowds."""

    name = "nuts"
    draws: int = setting(500, "draws kept per chain", least=1)
    warmup: int = setting(500, "draws per chain that adapt the sampler and are thrown away", least=1)
    chains: int = setting(2, "chains, run one after another", least=1)
    max_tree_depth: int = setting(8, "longest path, as a power of two", least=1)
    target_accept: float = setting(0.8, "acceptance rate that the step size aims at", above=0, below=1)

    def run(self, task):
        from pyrocrowd.infer.nuts import run

        return run(self, task)


ENGINES = {engine.name: engine for engine in (EM, MAP, SVI, NUTS)}
