"""Clusters of two groupings paired by hand, the pair that shares most things first."""


def matched(previous: list[int], current: list[int], clusters: int) -> list[int]:
    """The current numbers, renamed after the former clusters that they share most with."""
    shared: dict[tuple[int, int], int] = {}
    for former, new in zip(previous, current, strict=True):
        shared[(former, new)] = shared.get((former, new), 0) + 1
    names: dict[int, int] = {}
    while True:
        best = None
        for pair, count in sorted(shared.items()):
            former, new = pair
            free = former not in names.values() and new not in names and former < clusters
            if free and (best is None or count > shared[best]):
                best = pair
        if best is None:
            break
        names[best[1]] = best[0]
    left = [number for number in range(clusters) if number not in names.values()]
    for new in range(clusters):
        if new not in names:
            names[new] = left.pop(0)
    return [names[new] for new in current]
