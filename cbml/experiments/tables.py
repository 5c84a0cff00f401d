"""Every table by name: the loss ablation, comparisons of methods, studies, pseudo-labels."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from cbml.errors import BadData, nearest
from cbml.experiments.rows import (
    RANDOM_START,
    Changes,
    Key,
    Row,
    Table,
    cbml_changes,
    merged,
    published_keys,
)
from cbml.experiments.studies import DATA_OF, FIGURE_TABLES, STUDIES, WHOLE, published_row
from cbml.methods import METHODS

# Methods of the paper's tables -> our loss.
_LOSS_OF = {
    "Contrastive": "contrastive",
    "Triplet": "triplet_semihard",
    "LiftedStruct": "lifted_structure",
    "Binomial Deviance": "binomial_deviance",
    "Histogram Loss": "histogram",
    "N-Pair-Loss": "n_pair",
    "N-Pair": "n_pair",
    "Angular Loss": "angular",
    "MS": "multi_similarity",
    "MS+XBM": "multi_similarity_xbm",
    "MS+EE": "multi_similarity_ee",
    "DR": "multi_similarity_dr",
    "RLL-Simpler": "ranked_list_simpler",
    "SCT": "selectively_contrastive_triplet",
    "Clustering": "facility_location",
    "RankMI": "rank_mi",
    "LoOp+MS": "multi_similarity_loop",
    "MemVir+PA": "proxy_anchor_memvir",
    "RLL-H": "ranked_list",
    "SoftTriple": "soft_triple",
    "Proxy-Anchor": "proxy_anchor",
    "ProxyNCA": "proxy_nca",
    "ProxyNCA++": "proxy_nca_pp",
    "Margin": "margin",
    "FastAP": "fast_ap",
    "TML": "tuplet_margin",
    "EPSHN": "triplet_easy_positive",
    "CircleLoss": "circle",
}
# Methods of the paper's tables -> our method, where the labels are known.
_METHOD_OF = {
    printed: name
    for name, entry in METHODS.items()
    if entry.labels == "known"
    for printed in entry.printed
}


def _loss(name: str, **options: float) -> Changes:
    return {"loss": {"name": name, **options}}


# The loss ablation.

_CONSTRAINT = {"variance_weight": 1.0, "target_mix": 0.2}
_PARTS = {  # published name -> (suffix of ours, constraint, mining)
    "CBML(no MVC, no mining)": ("", False, False),
    "CBML+MVC": (" +MVC", True, False),
    "CBML+MVC+HardMining": (" +MVC +mining", True, True),
}


def _ablation_key(method: str) -> Key:
    return ("ResNet-50", method, "512", "CUB")


def _cbml_rows(published: str) -> list[Row]:
    """CBML with some of its parts, by the constants of the paper and of three other sources."""
    suffix, constraint, mining = _PARTS[published]
    name = f"CBML{suffix}"
    parts: dict[str, Any] = {"constraint": constraint, "mining": mining}
    rows = [
        Row(
            method=name,
            changes=cbml_changes("cub", **parts),
            published=_ablation_key(published),
            family="CBML",
        )
    ]
    variants = {
        "authors": cbml_changes("cub", constants="authors", **parts),
        "products": cbml_changes("sop", **parts),
        "from data": cbml_changes("cub", constants="from-data", **parts),
    }
    if not constraint:  # without it and without mining the authors' program says the same
        del variants["authors"]
    rows += [
        Row(method=f"{name} ({source})", changes=changes, family=f"CBML ({source})")
        for source, changes in variants.items()
    ]
    return rows


def _constrained(method: str, loss: str) -> list[Row]:
    """A loss as it is and with the variance constraint."""
    return [
        Row(method=method, changes=_loss(loss), published=_ablation_key(method), family=method),
        Row(
            method=f"{method} +MVC",
            changes=_loss(loss, **_CONSTRAINT),
            published=_ablation_key(f"{method}+MVC"),
            family=method,
        ),
    ]


LOSS_ABLATION = Table(
    name="loss-ablation",
    title="Losses with and without the variance constraint and hard mining",
    published="loss_ablation",
    rows=(
        *_constrained("ProxyNCA", "proxy_nca"),
        *_constrained("MS", "multi_similarity"),
        *(row for published in _PARTS for row in _cbml_rows(published)),
        Row(method="Proxy-Anchor", changes=_loss("proxy_anchor")),
    ),
)

# Comparisons of methods: every published row whose loss or method we have.


def _comparison(table: str, *, pretrained: bool = True) -> tuple[Row, ...]:
    rows = []
    start = {} if pretrained else RANDOM_START
    for key in published_keys(table):
        if key[1] == "CBML":
            changes: Changes = cbml_changes(DATA_OF[key[3]])
        elif key[1] in _LOSS_OF:
            changes = _loss(_LOSS_OF[key[1]])
        elif key[1] in _METHOD_OF:
            name = _METHOD_OF[key[1]]
            changes = {
                "method": {"name": name, **METHODS[name].by_dataset.get(DATA_OF[key[3]], {})}
            }
        else:
            continue
        row = published_row(key, merged(changes, start), pretrained=pretrained)
        note = METHODS[_METHOD_OF[key[1]]].note if key[1] in _METHOD_OF else ""
        rows.append(dataclasses.replace(row, method=f"{key[1]} ({note})") if note else row)
    return tuple(rows)


COMPARISONS = (
    Table(
        name="cub-cars",
        title="Methods on CUB and Cars",
        published="cs1_cub_cars_512",
        rows=_comparison("cs1_cub_cars_512"),
        metrics=("R@1", "R@2", "R@4", "R@8", "NMI"),
    ),
    Table(
        name="sop-inshop",
        title="Methods on SOP and In-Shop",
        published="cs2_sop_inshop_512",
        rows=_comparison("cs2_sop_inshop_512"),
        metrics=("R@1", "R@10", "R@20", "R@30", "R@100", "R@1000", "NMI"),
    ),
    Table(
        name="cub-cars-64",
        title="Methods on CUB and Cars with 64 dimensions",
        published="cs3_cub_cars_64",
        rows=_comparison("cs3_cub_cars_64"),
    ),
    Table(
        name="imagenet",
        title="Zero-shot retrieval on ImageNet, from random weights",
        published="imagenet",
        rows=_comparison("imagenet", pretrained=False),
        metrics=("R@1", "R@10"),
    ),
)

# Learning from pseudo-labels: no mining, 128 dimensions.


# The rows of MOM and sSUML that the paper prints as 128-d have these widths at their authors'.
_OTHER_DIM = {("MOM", "CUB"): 64, ("MOM", "Cars"): 64, ("MOM", "SOP"): 64} | {
    ("sSUML", "CUB"): 512,
    ("sSUML", "SOP"): 512,
}
# Of ISIF on CIFAR from random weights; the rate of these rows is not recorded.
_SCRATCH_SGD = 0.03


def _unlabeled(table: str, *, pretrained: bool = True) -> tuple[Row, ...]:
    rows = []
    start = {} if pretrained else RANDOM_START
    methods = {
        printed: name
        for name, entry in METHODS.items()
        for printed in entry.printed
        if entry.labels != "known" and not entry.has_loss
    }
    for key in published_keys(table):
        if key[1] == "CBML":
            changes = merged(cbml_changes(DATA_OF[key[3]], mining=False), start)
            rows.append(published_row(key, changes, pretrained=pretrained, labels="none"))
        elif key[1] in methods:
            rows.append(_unlabeled_method(key, methods[key[1]], pretrained=pretrained))
    return tuple(rows)


def _unlabeled_method(key: Key, name: str, *, pretrained: bool) -> Row:
    """A row of another method without labels, with the crops and the optimizer of its authors."""
    entry = METHODS[name]
    views: Changes = {"training": {"samples_per_class": 2}} if entry.labels == "each" else {}
    changes = merged(views, entry.defaults, {"method": {"name": name}})
    if not pretrained:
        changes = merged(changes, RANDOM_START, {"optimizer": {"learning_rate": _SCRATCH_SGD}})
    row = published_row(key, changes, pretrained=pretrained, labels=entry.labels)
    return dataclasses.replace(row, dim=_OTHER_DIM.get((key[1], key[3]), row.dim))


def _unlabeled_parts() -> tuple[Row, ...]:
    rows = []
    for key in published_keys("pseudo_components"):
        if key[1] in _PARTS:
            _, constraint, mining = _PARTS[key[1]]
            changes = cbml_changes("cub", constraint=constraint, mining=mining)
            rows.append(published_row(key, changes, labels="none"))
    return tuple(rows)


def _unlabeled_batches() -> tuple[Row, ...]:
    sizes = {f"CBML(batch={size})": size for size in ("30", "80", "100", "200")}
    rows = []
    for key in published_keys("pseudo_batch_size"):
        batch: Changes = {
            "pseudo_labels": {"batch_range": sizes[key[1]]},
            "training": {"samples_per_class": 5},
        }
        changes = merged(cbml_changes("cub", mining=False), batch)
        rows.append(published_row(key, changes, labels="none"))
    return tuple(rows)


PSEUDO_TABLES = (
    Table(
        name="pseudo",
        title="Pseudo-labels, pretrained GoogLeNet",
        published="pseudo_tl1",
        rows=_unlabeled("pseudo_tl1"),
        metrics=("R@1", "R@2", "R@4", "R@8", "R@10", "R@100"),
        tuned_as=WHOLE,
    ),
    Table(
        name="pseudo-scratch",
        title="Pseudo-labels, ResNet-18 from random weights",
        published="pseudo_from_scratch",
        rows=_unlabeled("pseudo_from_scratch", pretrained=False),
        metrics=("R@1", "R@10", "R@100"),
    ),
    Table(
        name="pseudo-backbones",
        title="Pseudo-labels, three backbones",
        published="pseudo_backbones",
        rows=_unlabeled("pseudo_backbones"),
        metrics=("R@1",),
        tuned_as=WHOLE,
    ),
    Table(
        name="pseudo-components",
        title="Pseudo-labels, with and without the constraint and mining",
        published="pseudo_components",
        rows=_unlabeled_parts(),
        tuned_as=WHOLE,
    ),
    Table(
        name="pseudo-batch-size",
        title="Pseudo-labels, batch size",
        published="pseudo_batch_size",
        rows=_unlabeled_batches(),
        metrics=("R@1",),
        tuned_as=WHOLE,
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (LOSS_ABLATION, *COMPARISONS, *STUDIES, *PSEUDO_TABLES)
}


def find_table(name: str) -> Table:
    """The table or figure of that name; a wrong one is refused with the nearest.

    Args:
        name: A key of TABLES or FIGURE_TABLES.
    """
    known = TABLES | FIGURE_TABLES
    if name not in known:
        asked = [*known, "leaderboard"]  # listed and run like a table, but none of the paper
        raise BadData(f"{name!r}: no such table or figure; {nearest(name, asked)}")
    return known[name]


def with_own_rows(
    table: Table, *, losses: Sequence[str] = (), methods: Sequence[str] = ()
) -> Table:
    """The table with rows for code of the user's own, wherever it has rows.

    Args:
        table: Its datasets, networks and sizes are theirs.
        losses: "package.module:Class" each.
        methods: "package.module:Class" each.
    """
    own: list[tuple[str, Changes]] = [(name, _loss(name)) for name in losses]
    own += [(name, {"method": {"name": name}}) for name in methods]
    settings = dict.fromkeys((row.data, row.backbone, row.dim) for row in table.rows)
    rows = [
        Row(method=name, changes=changes, data=data, backbone=backbone, dim=dim)
        for name, changes in own
        for data, backbone, dim in settings
    ]
    return dataclasses.replace(table, rows=(*table.rows, *rows))
