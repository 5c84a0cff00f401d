"""The numbers of the paper's tables, as printed; published.csv.txt says where they come from."""

import csv
import functools
from pathlib import Path

from cbml.experiments.rows import Key

__all__ = ["PUBLISHED_ONLY", "published_keys", "published_scores"]

# Why the rows of a published method have no recipe of ours.
PUBLISHED_ONLY = {
    "Gain": "the difference of two rows, not a method",
    "RLL-(L,M,H)": "joins features of three depths; ours has one",
    "RLL-Simpler": "another variant than the ranked list loss we have",
    "CE": "a classifier over raw features; ours is normalised",
    "MS+EE": "needs expanded embeddings, which we do not make",
    "LoOp+MS": "needs optimal hard negatives, which we do not make",
    **dict.fromkeys(
        (
            *("A-BIER", "AND", "BIER", "CBSwR", "Clustering", "Contrastive+HORDE", "D & C"),
            *("DCML-MDW", "DR", "DRML-MDW", "DRML-PA", "DeML", "DeepCluster", "Divide-Conquer"),
            *("Examplar", "Fusing-Net", "HDC", "HDML", "ISIF", "LSCM-GNN", "MIC+Margin", "MOM"),
            *("MemVir+PA", "NCE", "Ortho", "PA+DIML", "PADS", "PSLR", "RankMI", "SCT"),
            *("Sharing-DML", "Smart Mining", "aISIF", "sSUML"),
        ),
        "the method is not among our losses",
    ),
}


@functools.cache
def published_scores() -> dict[str, dict[Key, dict[str, float]]]:
    """Table -> row -> metric -> percent, all in the order of the paper."""
    path = Path(__file__).with_name("published.csv")
    tables: dict[str, dict[Key, dict[str, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = (line["backbone"], line["method"], line["dim"], line["dataset"])
            rows = tables.setdefault(line["table"], {})
            rows.setdefault(key, {})[line["metric"]] = float(line["value"])
    return tables


def published_keys(table: str) -> tuple[Key, ...]:
    """The rows of a table.

    Args:
        table: as published.csv names it.
    """
    return tuple(published_scores()[table])
