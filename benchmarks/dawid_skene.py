"""Dawid-Skene against majority vote on the real crowds, how often its intervals hold the truth, and what a step costs.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python benchmarks/dawid_skene.py

Prints Markdown. Accuracy is that of the inferred labels against the known truth, ties to the first class; no run
selects anything on it. Speed is a ratio to the same sums written by hand, measured in the same run.
"""

import time
import warnings

import numpy as np
import torch

import pyrocrowd
from pyrocrowd import EM, SVI, metrics
from pyrocrowd.data import sets
from pyrocrowd.data.simulate import from_confusions
from pyrocrowd.infer.exact import explain_crowd
from pyrocrowd.infer.run import Task, bind, workspace

REAL = ("labelme", "music_genre", "bluebirds", "rte", "medical_causes", "medical_treats", "product", "dog", "web")
REAL += ("adult", "d_sentiment", "weather_sentiment_amt", "weather_sentiment_crowdflower", "cifar10n")


def accuracy_on_real_crowds():
    print("\n| crowd | labels | majority vote | Dawid-Skene, EM | Dawid-Skene, SVI |\n|---|---|---|---|---|")
    for name in REAL:
        try:
            crowd = sets.real(name)
        except FileNotFoundError:
            continue
        vote = metrics.accuracy(crowd.truth, metrics.soft_vote(crowd))
        em = pyrocrowd.fit("dawid_skene", crowd, EM(max_iter=500)).metrics()["accuracy"]
        svi = pyrocrowd.fit("dawid_skene", crowd, SVI(steps=800, draws=50)).metrics()["accuracy"]
        print(f"| {name} | {crowd.n_annotations:,} | {vote:.4f} | {em:.4f} | {svi:.4f} |", flush=True)


def coverage_of_intervals(seeds=5):
    """Annotators drawn from a wide range of accuracies, all mistakes alike: does the 90% interval hold the truth?"""
    print("\n| classes | labels per annotator | engine | 90% intervals that hold the true skill |\n|---|---|---|---|")
    for classes, items in ((2, 200), (2, 1000), (4, 400), (4, 2000)):
        held = {"em": [], "svi": []}
        for seed in range(seeds):
            generator = np.random.default_rng(seed)
            accuracy = generator.uniform(1 / classes, 0.95, size=20)[:, None, None]
            confusion = np.where(np.eye(classes, dtype=bool), accuracy, (1 - accuracy) / (classes - 1))
            crowd = from_confusions(generator.integers(classes, size=items), confusion, 5, seed).crowd
            for name, engine in (("em", EM()), ("svi", SVI(steps=1000, draws=200))):
                fit = pyrocrowd.fit("dawid_skene", crowd, engine, seed=seed)
                table, true = fit.annotators(), metrics.skill(confusion, fit.truth.mean(0))
                held[name].append(np.mean((table["skill_low"] <= true) & (true <= table["skill_high"])))
        for name, shares in held.items():
            spread = f"{np.mean(shares):.2f} +- {np.std(shares):.2f}"
            print(f"| {classes} | {items * 5 // 20} | {name} | {spread} |", flush=True)


def cost_of_an_iteration(items=200_000, annotators=2_000, classes=10):
    """One E-step through the Pyro story, and the M-step, against the same sums over the flat table in plain torch."""
    generator = np.random.default_rng(0)
    noise = generator.dirichlet(np.ones(classes), size=(annotators, classes))
    made = from_confusions(generator.integers(classes, size=items), 0.6 * np.eye(classes) + 0.4 * noise, 5)
    crowd, entry = made.crowd, pyrocrowd.zoo.find("dawid_skene")
    settings = entry.settle({})
    with workspace(crowd.device, EM()), torch.no_grad():
        bound = bind(entry, crowd, settings)
        anatomy = pyrocrowd.check.examine(bound, crowd)
        task = Task(bound, crowd, anatomy, entry.bind_m_step(settings), 0, entry.name)
        posterior = {"truth": crowd.soft_vote()}
        values = task.m_step(crowd, posterior)
        item, cell = torch.as_tensor(crowd.item), torch.as_tensor(crowd.annotator * classes + crowd.label)

        def by_hand():
            columns = values["confusion"].log().transpose(1, 2).reshape(-1, classes)
            scores = values["prevalence"].log().repeat(items, 1).index_add_(0, item, columns[cell])
            return scores.softmax(-1)

        ours = _seconds(lambda: explain_crowd(bound, crowd, values, anatomy))
        theirs = _seconds(by_hand)
        m_step = _seconds(lambda: task.m_step(crowd, posterior))
    print(f"\nE-step on {crowd.n_annotations:,} labels: {ours:.3f} s, {ours / theirs:.1f} times the flat sums by hand")
    print(f"({theirs:.3f} s); M-step {m_step:.3f} s.")


def _seconds(work, times=5):
    work()
    marks = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        marks.append(time.perf_counter() - start)
    return min(marks)


if __name__ == "__main__":
    warnings.simplefilter("ignore", pyrocrowd.PyrocrowdWarning)
    accuracy_on_real_crowds()
    coverage_of_intervals()
    cost_of_an_iteration()
