"""Memory of the low-rank trace model: 1,000 classes x 1,000 annotators, a few training steps, then the whole fit."""

import resource
import time

import numpy as np
import torch

from pyrocrowd import MAP, Crowd, fit

CLASSES, ANNOTATORS, ITEMS, LABELS, RANK, STEPS = 1_000, 1_000, 5_000, 3, 4, 20


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main():
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    truth = generator.integers(CLASSES, size=ITEMS)
    item = np.repeat(np.arange(ITEMS), LABELS)
    wrong = generator.random(len(item)) < 0.3
    crowd = Crowd(
        item,
        generator.integers(ANNOTATORS, size=len(item)),
        np.where(wrong, generator.integers(CLASSES, size=len(item)), truth[item]),
        item_names=np.arange(ITEMS),
        annotator_names=np.arange(ANNOTATORS),
        class_names=np.arange(CLASSES),
        features=generator.normal(size=(CLASSES, 50)).astype(np.float32)[truth],
    )
    before, started = peak(), time.perf_counter()
    fit("trace", crowd, MAP(steps=STEPS, batch_size=128), rank=RANK)
    after, seconds = peak(), time.perf_counter() - started
    dense = 4 * CLASSES**2 * ANNOTATORS * 4 / 2**30
    print(f"{STEPS} steps and the whole fit in {seconds:.0f} s: peak {after:.2f} GiB, {before:.2f} of it before;")
    print(f"full matrices with gradient and two moments of Adam would take {dense:.1f} GiB.")


if __name__ == "__main__":
    main()
