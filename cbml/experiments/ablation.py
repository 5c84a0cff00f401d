"""The table of losses with and without the constraint and mining."""

from cbml.experiments.rows import Key, Row, Table, cbml_changes

__all__ = ["LOSS_ABLATION"]

_CONSTRAINT = ("loss.variance_weight=1.0", "loss.target_mix=0.2")


def _key(method: str) -> Key:
    return ("ResNet-50", method, "512", "CUB")


def _cbml(name: str, *, constraint: bool, mining: bool, key: str) -> tuple[Row, ...]:
    rows = [
        Row(
            method=f"CBML{name}",
            changes=cbml_changes("cub", constraint=constraint, mining=mining),
            published=_key(key),
        )
    ]
    if constraint:  # without it and without mining the two say the same
        authors = cbml_changes("cub", choice="authors", constraint=constraint, mining=mining)
        rows.append(Row(method=f"CBML{name} (authors)", changes=authors))
    products = cbml_changes("sop", constraint=constraint, mining=mining)
    rows.append(Row(method=f"CBML{name} (products)", changes=products))
    found = cbml_changes("cub", choice="from-data", constraint=constraint, mining=mining)
    rows.append(Row(method=f"CBML{name} (from data)", changes=found))
    return tuple(rows)


LOSS_ABLATION = Table(
    name="loss-ablation",
    title="Losses with and without the variance constraint and hard mining",
    published="loss_ablation",
    rows=(
        Row(method="ProxyNCA", changes=("loss=proxy_nca",), published=_key("ProxyNCA")),
        Row(
            method="ProxyNCA +MVC",
            changes=("loss=proxy_nca", *_CONSTRAINT),
            published=_key("ProxyNCA+MVC"),
        ),
        Row(method="MS", changes=("loss=multi_similarity",), published=_key("MS")),
        Row(
            method="MS +MVC",
            changes=("loss=multi_similarity", *_CONSTRAINT),
            published=_key("MS+MVC"),
        ),
        *_cbml("", constraint=False, mining=False, key="CBML(no MVC, no mining)"),
        *_cbml(" +MVC", constraint=True, mining=False, key="CBML+MVC"),
        *_cbml(" +MVC +mining", constraint=True, mining=True, key="CBML+MVC+HardMining"),
        Row(method="Proxy-Anchor", changes=("loss=proxy_anchor",)),
    ),
)
