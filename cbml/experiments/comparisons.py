"""The tables that compare methods: every published row whose loss we have gets a recipe."""

from cbml.experiments.published import published_keys
from cbml.experiments.rows import BACKBONE_NAMES, DATA_NAMES, Key, Row, Table, cbml_changes
from cbml.experiments.scales import SCRATCH

__all__ = ["COMPARISONS", "LOSS_OF", "row_of"]

# Methods of the paper's tables -> our loss.
LOSS_OF = {
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
# Methods that the loss ablation has trials for.
_TUNED_AS = {
    "MS": "MS",
    "ProxyNCA": "ProxyNCA",
    "Proxy-Anchor": "Proxy-Anchor",
    "CBML": "CBML +MVC +mining",
}
_BACKBONES = {printed: name for name, printed in BACKBONE_NAMES.items()}
_DATA = {printed: name for name, printed in DATA_NAMES.items()}


def row_of(key: Key, changes: tuple[str, ...], *, pseudo: bool = False) -> Row:
    """A row of ours for a published one.

    Args:
        key: of the published row.
        changes: of the scale's recipe.
        pseudo: whether labels are found by clustering.
    """
    backbone, method, dim, data = key
    scratch = set(SCRATCH) <= set(changes)  # which rate suits pretrained weights says nothing here
    return Row(
        method=method,
        changes=changes,
        data=_DATA[data],
        backbone=_BACKBONES[backbone],
        dim=int(dim or 512),
        published=key,
        labels="pseudo" if pseudo else "given",
        tuned_as=None if scratch else _TUNED_AS.get(method),
    )


def _rows(table: str, *changes: str) -> tuple[Row, ...]:
    rows = []
    for key in published_keys(table):
        if key[1] == "CBML":
            rows.append(row_of(key, (*cbml_changes(_DATA[key[3]]), *changes)))
        elif key[1] in LOSS_OF:
            rows.append(row_of(key, (f"loss={LOSS_OF[key[1]]}", *changes)))
    return tuple(rows)


_PRODUCTS = ("R@1", "R@10", "R@20", "R@30", "R@100", "R@1000", "NMI")

COMPARISONS = (
    Table(
        name="cub-cars",
        title="Methods on CUB and Cars",
        published="cs1_cub_cars_512",
        rows=_rows("cs1_cub_cars_512"),
        metrics=("R@1", "R@2", "R@4", "R@8", "NMI"),
    ),
    Table(
        name="sop-inshop",
        title="Methods on SOP and In-Shop",
        published="cs2_sop_inshop_512",
        rows=_rows("cs2_sop_inshop_512"),
        metrics=_PRODUCTS,
    ),
    Table(
        name="cub-cars-64",
        title="Methods on CUB and Cars with 64 dimensions",
        published="cs3_cub_cars_64",
        rows=_rows("cs3_cub_cars_64"),
    ),
    Table(
        name="imagenet",
        title="Zero-shot retrieval on ImageNet, from random weights",
        published="imagenet",
        rows=_rows("imagenet", *SCRATCH),
        metrics=("R@1", "R@10"),
    ),
)
