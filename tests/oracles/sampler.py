"""The order of batches again, by hand: one list after another, one window at a time."""

import math
import random
from collections.abc import Sequence


def windows(size: int, length: int) -> list[list[int]]:
    """The places of a shuffled class cut into windows; the last goes on from the start."""
    return [[(start + step) % size for step in range(length)] for start in range(0, size, length)]


def pass_length(sizes: Sequence[int], classes: int, length: int) -> int:
    """How many batches a pass has: enough places for all windows, no class twice in a batch."""
    counts = [len(windows(size, length)) for size in sizes]
    return max(math.ceil(sum(counts) / classes), *counts)


def faults(
    labels: Sequence[int], batches: Sequence[Sequence[int]], classes: int, length: int
) -> list[str]:
    """Everything that is wrong with a pass; an empty list if it keeps all promises."""
    wrong = []
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    seen: dict[int, int] = dict.fromkeys(range(len(labels)), 0)
    for number, batch in enumerate(batches):
        groups: dict[int, list[int]] = {}
        for index in batch:
            seen[index] += 1
            groups.setdefault(labels[index], []).append(index)
        if len(groups) != classes:
            wrong.append(f"batch {number} has {len(groups)} classes")
        for label, group in groups.items():
            if len(group) != length:
                wrong.append(f"batch {number} has {len(group)} of class {label}")
            most = math.ceil(length / len(members[label]))
            if max(group.count(index) for index in group) > most:
                wrong.append(f"batch {number} repeats class {label} more than it must")
    wrong += [f"image {index} never comes up" for index, count in seen.items() if not count]
    expected = pass_length([len(group) for group in members.values()], classes, length)
    if len(batches) != expected:
        wrong.append(f"{len(batches)} batches instead of {expected}")
    return wrong


def dealt(sizes: Sequence[int], classes: int, length: int, seed: int) -> list[list[int]]:
    """Classes of each batch: windows dealt in rounds, each round in a random order of batches."""
    chance = random.Random(seed)
    count = pass_length(sizes, classes, length)
    queue = [
        label
        for label in chance.sample(range(len(sizes)), len(sizes))
        for _ in windows(sizes[label], length)
    ]
    batches: list[list[int]] = [[] for _ in range(count)]
    for _ in range(classes):
        order = chance.sample(range(count), count)
        while order and queue:
            # The first batch of the round that does not hold the class yet.
            place = next(place for place in order if queue[0] not in batches[place])
            order.remove(place)
            batches[place].append(queue.pop(0))
    for batch in batches:
        while len(batch) < classes:
            batch.append(chance.choice([c for c in range(len(sizes)) if c not in batch]))
    return batches


def guessed_faults(
    labels: Sequence[int], batches: Sequence[Sequence[int]], classes: int, length: int
) -> list[str]:
    """As `faults`, of a pass over labels that are guesses and may be lopsided."""
    wrong = []
    alive = len(set(labels))
    each = length if alive >= classes else classes * length // alive
    for number, batch in enumerate(batches):
        groups: dict[int, list[int]] = {}
        for index in batch:
            groups.setdefault(labels[index], []).append(index)
        if len(groups) != min(classes, alive):
            wrong.append(f"batch {number} has {len(groups)} classes")
        for label, group in groups.items():
            if len(group) != each:
                wrong.append(f"batch {number} has {len(group)} of class {label}")
    if len(batches) != math.ceil(len(labels) / (classes * length)):
        wrong.append(f"{len(batches)} batches of {len(labels)} images")
    return wrong
