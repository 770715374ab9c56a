"""NUTS: the small-data reference. Chains run one after another, so that a model from a notebook needs no pickling."""

from __future__ import annotations

import numpy as np
import pyro
import torch
from pyro.infer import MCMC
from pyro.infer import NUTS as Kernel
from pyro.infer.mcmc.util import initialize_model

from pyrocrowd.infer.exact import explain
from pyrocrowd.infer.run import Learned, Task, evaluate
from pyrocrowd.infer.settings import NUTS
from pyrocrowd.infer.start import init_function
from pyrocrowd.progress import progress_bar

JITTER = 0.3  # chains start this far apart, in the unconstrained space, so that r_hat can tell whether they met


def run(settings: NUTS, task: Task) -> Learned:
    evaluate(task.model)
    if not task.anatomy.latent:  # nothing to sample: the one state there is
        notes = {"stopped": "draws", "converged": True, "divergences": 0, "chains": 1}
        return Learned({}, [float(_potential(task, {})({}))], notes=notes)
    start, transforms = _start(task)
    chains, diaries = [], []
    with progress_bar(f"{task.name} nuts", settings.chains * (settings.warmup + settings.draws)) as advance:
        for chain in range(settings.chains):
            pyro.set_rng_seed(task.seed + chain)
            diary = _Diary(advance, f"chain {chain + 1} of {settings.chains}")
            kernel = Kernel(
                potential_fn=_potential(task, transforms),
                transforms=transforms,
                max_tree_depth=settings.max_tree_depth,
                target_accept_prob=settings.target_accept,
            )
            sampler = MCMC(
                kernel,
                num_samples=settings.draws,
                warmup_steps=settings.warmup,
                initial_params={name: z + JITTER * torch.randn_like(z) for name, z in start.items()},
                disable_progbar=True,
                hook_fn=diary.write,
            )
            try:
                sampler.run()
            except KeyboardInterrupt:
                if not chains:
                    raise
                break
            chains.append({name: value.detach() for name, value in sampler.get_samples().items()})
            diaries.append(diary.pages)
    draws = {name: torch.stack([chain[name] for chain in chains]) for name in task.anatomy.latent}
    stats = {name: np.array([diary[name] for diary in diaries]) for name in diaries[0]}
    divergences = int(stats["diverging"].sum())
    notes = {
        "stopped": "draws" if len(chains) == settings.chains else "interrupted",
        "converged": len(chains) == settings.chains and not divergences,
        "divergences": divergences,
        "chains": len(chains),
    }
    return Learned(draws, (-stats["lp"]).mean(0).tolist(), stats=stats, notes=notes)


def _start(task):
    """Unconstrained starting values and the way to them; Pyro finds both from the continuous sites alone."""
    story = pyro.poutine.block(task.model, expose=list(task.anatomy.latent))
    start, _, transforms, _ = initialize_model(
        story,
        model_args=(task.crowd.batch(),),
        max_plate_nesting=task.anatomy.nesting,
        init_strategy=init_function(task),
    )
    return {name: value.detach() for name, value in start.items()}, transforms


def _potential(task, transforms):
    """Minus the log-posterior in the unconstrained space, all discrete sites summed out exactly."""
    batch = task.crowd.batch()

    def potential(unconstrained):
        values = {name: transforms[name].inv(z) for name, z in unconstrained.items()}
        found = explain(task.model, batch, values, task.anatomy)
        total = found.evidence.sum() + found.log_prior + found.local_log_prior
        for name, value in values.items():
            total = total - transforms[name].log_abs_det_jacobian(value, unconstrained[name]).sum()
        return -total

    return potential


class _Diary:
    """What happened at every draw of one chain."""

    def __init__(self, advance, title):
        self.advance, self.title = advance, title
        self.pages = {"lp": [], "step_size": [], "diverging": []}

    def write(self, kernel, samples, stage, step):
        self.advance(note=f"{self.title}, {stage.lower().split()[0]}")
        if stage.startswith("Sample"):
            self.pages["lp"].append(-float(kernel._potential_energy_last))
            self.pages["step_size"].append(float(kernel.step_size))
            self.pages["diverging"].append(len(kernel._divergences) > sum(self.pages["diverging"]))
