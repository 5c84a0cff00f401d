"""All methods by name, as text: nothing is imported until one of them is used."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from cbml.training import Method


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """One entry of `METHODS`.

    Args:
        location: "module:Class".
        title: One line that describes it.
        printed: Names under which the paper's tables print it.
        has_loss: Whether it is built around a loss that users may choose.
        note: What must stand beside its name wherever it appears, such as "reconstruction".
        labels: The `--labels` with which it learns: "known", "none" where it finds clusters, or
            "each" where every image is a class of its own.
        defaults: Fields of a run's config that it starts with, by section, where the method's
            authors are known to have chosen otherwise than this paper's.
        by_dataset: Options that the authors chose for one dataset, by its name, where they are not
            those of the class; the rows of the paper's tables have them.
    """

    location: str
    title: str
    printed: tuple[str, ...] = ()
    has_loss: bool = False
    note: str = ""
    labels: Literal["known", "none", "each"] = "known"
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def load(self) -> "type[Method]":
        """Import the class."""
        found: type[Method] = pkgutil.resolve_name(self.location)
        return found


# The authors of ISIF printed the rows of most methods without labels, with mild crops, 227 of 256
# pixels, and SGD. Their batches are of 64 images twice.
_MILD_CROPS = {"min_area": 0.79}
_ISIF_OPTIMIZER = {"name": "sgd", "learning_rate": 1e-3, "weight_decay": 5e-4}
_ISIF_SETTING: dict[str, dict[str, Any]] = {
    "augmentation": _MILD_CROPS,
    "optimizer": _ISIF_OPTIMIZER,
    "pseudo_labels": {"batch_range": "128"},
}
_ONE_VIEW: dict[str, dict[str, Any]] = {
    **_ISIF_SETTING,
    "training": {"samples_per_class": 1},
}

METHODS: dict[str, MethodEntry] = {
    "pseudo_labels": MethodEntry(
        location="cbml.methods.pseudo_labels:PseudoLabels",
        title="any loss on clusters of the images, renewed between epochs",
        printed=("CBML",),  # the rows of the tables without labels
        has_loss=True,
        labels="none",
    ),
    "larger_views": MethodEntry(
        location="cbml.methods.larger_views:LargerViews",
        title="neighbors and similarities of enlarged images, taught to the model at its own size",
        labels="each",
        defaults={
            "augmentation": {"min_area": 0.5},
            # The paper's 128 for clusters whiten too few directions; searches see larger images.
            "model": {"dim": 512, "test_crop": 0},
            "optimizer": {"learning_rate": 4e-4},
            "training": {"samples_per_class": 1, "choose_by": "agreement", "validate_every": 40},
        },
    ),
    "nce": MethodEntry(
        location="cbml.methods.nce:NCE",
        title="one view of an image against a memory of all images",
        printed=("NCE",),
        labels="each",
        defaults=_ONE_VIEW,
    ),
    "deep_cluster": MethodEntry(
        location="cbml.methods.deep_cluster:DeepCluster",
        title="clusters of the images and a new classifier of them for each epoch",
        printed=("DeepCluster",),
        labels="none",
        defaults=_ISIF_SETTING,
    ),
    "exemplar": MethodEntry(
        location="cbml.methods.exemplar:Exemplar",
        title="a linear classifier with a class for each image",
        printed=("Examplar",),
        labels="each",
        defaults=_ONE_VIEW,
    ),
    "mom": MethodEntry(
        location="cbml.methods.mom:MOM",
        title="triplets of images that are near on a graph but far in space, and vice versa",
        printed=("MOM",),
        labels="each",
        defaults={  # 42 triplets; its row in the tables has 64 dimensions, not 128
            "model": {"dim": 64},
            "optimizer": {"name": "sgd", "learning_rate": 0.01, "dampening": 0.9},
            "training": {"samples_per_class": 1},
            "pseudo_labels": {"batch_range": "126"},
        },
    ),
    "and": MethodEntry(
        location="cbml.methods.anchor_neighborhoods:AnchorNeighborhoods",
        title="a memory of all images, in which certain ones may be taken for their neighbor",
        printed=("AND",),
        labels="each",
        defaults=_ONE_VIEW,
    ),
    "isif": MethodEntry(
        location="cbml.methods.instance_spreading:InstanceSpreading",
        title="two views of an image are alike, and no view is any other image",
        printed=("ISIF",),
        labels="each",
        defaults=_ISIF_SETTING,
    ),
    "ssuml": MethodEntry(
        location="cbml.methods.ssuml:SSUML",
        title="the entropy of what random triplets and synthetic examples may mean",
        printed=("sSUML",),
        labels="each",
        defaults={  # batches of 120 images; conjugate gradients have no counterpart here
            "augmentation": _MILD_CROPS,
            "training": {"samples_per_class": 1},
            "pseudo_labels": {"batch_range": "120"},
        },
    ),
    "cbswr": MethodEntry(
        location="cbml.methods.cbswr:CBSwR",
        title="two views of an image are alike, against centers of clusters within the batch",
        printed=("CBSwR",),
        labels="each",
        defaults={
            "augmentation": {**_MILD_CROPS, "flip": 0.75},
            "optimizer": {"name": "sgd", "learning_rate": 1e-3, "momentum": 0.0},
            "training": {"samples_per_class": 2},
            "pseudo_labels": {"batch_range": "128"},
        },
    ),
    "ortho": MethodEntry(
        location="cbml.methods.ortho:Ortho",
        title="triplets of graph clusters under an angular constraint, an orthonormal layer",
        printed=("Ortho",),
        labels="none",
        defaults={
            "augmentation": _MILD_CROPS,
            "optimizer": {
                "name": "sgd",
                "learning_rate": 0.01,
                "dampening": 0.9,
                "weight_decay": 5e-4,
            },
            "pseudo_labels": {"batch_range": "120"},
        },
    ),
    "hdc": MethodEntry(
        location="cbml.methods.hdc:HDC",
        title="three depths, each with a contrastive loss on its hardest pairs",
        printed=("HDC",),
        by_dataset={"cub": {"weights": [1.0, 1.0, 2.0]}, "cars": {"weights": [1.0, 2.0, 3.0]}},
    ),
    "rll_lmh": MethodEntry(
        location="cbml.methods.ranked_levels:RankedLevels",
        title="three depths, each with a ranked list loss",
        printed=("RLL-(L,M,H)",),
    ),
    "horde": MethodEntry(
        location="cbml.methods.horde:Horde",
        title="a contrastive loss on the embedding and on higher moments of the feature map",
        printed=("Contrastive+HORDE",),
    ),
    "bier": MethodEntry(
        location="cbml.methods.bier:BIER",
        title="three learners on one feature, each boosted by what those before it miss",
        printed=("BIER",),
    ),
    "a_bier": MethodEntry(
        location="cbml.methods.bier:AdversarialBIER",
        title="BIER whose learners are kept independent by adversaries",
        printed=("A-BIER",),
    ),
    "divide_conquer": MethodEntry(
        location="cbml.methods.divide_conquer:DivideConquer",
        title="clusters of the images train slices of the embedding, then all of it",
        printed=("Divide-Conquer",),
        by_dataset={"sop": {"clusters": 8}, "inshop": {"clusters": 8}},
        defaults={"model": {"dim": 128}, "training": {"samples_per_class": 4}},
    ),
    "d_and_c": MethodEntry(
        location="cbml.methods.masked_divide_conquer:MaskedDivideConquer",
        title="clusters that split in two learn masks of the embedding",
        printed=("D & C",),
        defaults={"training": {"samples_per_class": 2}},
    ),
    "mic": MethodEntry(
        location="cbml.methods.mic:MIC",
        title="a second embedding, of clusters, learns what classes share",
        printed=("MIC+Margin",),
        by_dataset={
            "cars": {"clusters": 150, "adversary_weight": 500.0},
            "sop": {"clusters": 50, "adversary_weight": 250.0, "shared_probability": 0.5},
            "inshop": {"clusters": 150, "adversary_weight": 250.0},
        },
        defaults={"model": {"dim": 128}, "training": {"samples_per_class": 4}},
    ),
    "pads": MethodEntry(
        location="cbml.methods.pads:PADS",
        title="a policy learns at which distances to draw negatives",
        printed=("PADS",),
        by_dataset={
            "cars": {"held_back": 0.1, "reward": "recall_and_nmi", "beta_factor": 50.0},
            "sop": {
                "every": 60,
                "held_back": 0.1,
                "reward": "recall_and_nmi",
                "recall_at": [1, 10, 100, 1000],
                "beta": 1.2,
            },
        },
        defaults={"model": {"dim": 128}, "training": {"samples_per_class": 2}},
    ),
    "smart_mining": MethodEntry(
        location="cbml.methods.smart_mining:SmartMining",
        title="after Harwood et al.: triplets of near neighbors and a global loss",
        printed=("Smart Mining",),
        defaults={"model": {"dim": 64}},
    ),
    "hdml": MethodEntry(
        location="cbml.methods.hdml:HDML",
        title="N-pairs whose negatives are pulled closer, through a generator that keeps them real",
        printed=("HDML",),
        by_dataset={"cars": {"balance": 1e4, "norm_weight": 0.003}},
    ),
    "drml_pa": MethodEntry(
        location="cbml.methods.drml:ProxyAnchorDRML",
        title="related branches on pieces of the features, each with proxies of its own",
        printed=("DRML-PA",),
    ),
    "drml_mdw": MethodEntry(
        location="cbml.methods.drml:MarginDRML",
        title="related branches on pieces of the features, each with a margin loss",
        printed=("DRML-MDW",),
    ),
    "dcml_mdw": MethodEntry(
        location="cbml.methods.dcml:DCML",
        title="sub-embeddings trained through gated sums of them, each with a margin loss",
        printed=("DCML-MDW",),
        defaults={"training": {"samples_per_class": 2}},
    ),
    "sharing_dml": MethodEntry(
        location="cbml.methods.sharing:Sharing",
        title="one head for what tells classes apart, one for what they share",
        printed=("Sharing-DML",),
        by_dataset={
            "cars": {"shared_weight": 0.15, "decorrelation": 100.0},
            "sop": {"shared_weight": 0.2, "decorrelation": 150.0},
        },
        defaults={"model": {"dim": 256}, "training": {"samples_per_class": 2}},
    ),
    "pa_diml": MethodEntry(
        location="cbml.methods.diml:ProxyAnchorDIML",
        title="a proxy-anchor loss, and results reranked by cells of the images",
        printed=("PA+DIML",),
        defaults={"model": {"dim": 128}},
    ),
    "deml": MethodEntry(
        location="cbml.methods.deml:DeML",
        title="three networks for an image, a crop of it and a crop of that, with attentions each",
        printed=("DeML",),
    ),
    "lscm_gnn": MethodEntry(
        location="cbml.methods.lscm_gnn:LSCMGNN",
        title="a reconstruction: embeddings mixed with those of their neighbors, by a network",
        printed=("LSCM-GNN",),
        note="reconstruction, transductive",
    ),
    "fusing_net": MethodEntry(
        location="cbml.methods.fusing_net:FusingNet",
        title="a reconstruction: a histogram of colors joins the features of the network",
        printed=("Fusing-Net",),
        note="reconstruction",
    ),
}
