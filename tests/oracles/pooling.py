"""Pooling again, number by number."""

__all__ = ["pooled"]


def pooled(values: list[float], kind: str, power: float = 3.0, floor: float = 1e-6) -> float:
    """One pooled feature from its values at all places."""
    average = sum(values) / len(values)
    if kind == "average":
        return average
    if kind == "max":
        return max(values)
    if kind == "average_max":
        return average + max(values)
    assert kind == "generalized_mean"
    raised = [max(value, floor) ** power for value in values]
    return (sum(raised) / len(raised)) ** (1 / power)
