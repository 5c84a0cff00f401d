"""The nearest rows of each query, by plain loops."""

from collections.abc import Sequence


def nearest(
    queries: Sequence[Sequence[float]],
    rows: Sequence[Sequence[float]],
    ids: Sequence[int],
    k: int,
) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and similarities of the k most similar rows of each query, ties by smaller id."""
    all_ids, all_similarities = [], []
    for query in queries:
        pairs = []
        for row, name in zip(rows, ids, strict=True):
            similarity = 0.0
            for left, right in zip(query, row, strict=True):
                similarity += left * right
            pairs.append((-similarity, name))
        pairs.sort()
        all_ids.append([name for _, name in pairs[:k]])
        all_similarities.append([-negative for negative, _ in pairs[:k]])
    return all_ids, all_similarities
