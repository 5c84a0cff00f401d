"""All losses by name. A loss with proxies asks for `num_classes` and `embedding_size`.

The tables know names and places alone, so that spelling is checked before torch is imported: a
class is imported when it is asked for.
"""

import pkgutil
from collections import UserDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


class LossTable(UserDict[str, Any]):
    """Classes of losses by name, each imported when it is asked for.

    The data are places: name of a loss -> "module:Class", with the module below `cbml.losses`.
    """

    def __getitem__(self, name: str) -> "type[nn.Module]":
        found: type[nn.Module] = pkgutil.resolve_name(f"cbml.losses.{self.data[name]}")
        return found


#: The losses of other papers.
BASELINES = LossTable(
    {
        "angular": "baselines.tuplets:Angular",
        "arcface": "baselines.softmax:ArcFace",
        "binomial_deviance": "baselines.pairs:BinomialDeviance",
        "circle": "baselines.mined:Circle",
        "contrastive": "baselines.pairs:Contrastive",
        "facility_location": "baselines.tuplets:FacilityLocation",
        "fast_ap": "baselines.mined:FastAP",
        "histogram": "baselines.pairs:Histogram",
        "lifted_structure": "baselines.tuplets:LiftedStructure",
        "margin": "baselines.margin:Margin",
        "multi_similarity": "baselines.mined:MultiSimilarity",
        "multi_similarity_dr": "baselines.multi_similarity:MultiSimilarityDR",
        "multi_similarity_ee": "baselines.multi_similarity:MultiSimilarityEE",
        "multi_similarity_loop": "baselines.loop:MultiSimilarityLoOp",
        "multi_similarity_xbm": "baselines.multi_similarity:MultiSimilarityXBM",
        "n_pair": "baselines.tuplets:NPair",
        "normalized_softmax": "baselines.softmax:NormalizedSoftmax",
        "nt_xent": "baselines.tuplets:NTXent",
        "proxy_anchor": "baselines.proxies:ProxyAnchor",
        "proxy_anchor_memvir": "baselines.proxies:ProxyAnchorMemVir",
        "proxy_nca": "baselines.proxies:ProxyNCA",
        "proxy_nca_pp": "baselines.proxies:ProxyNCAPlusPlus",
        "rank_mi": "baselines.margin:RankMI",
        "ranked_list": "baselines.pairs:RankedList",
        "ranked_list_simpler": "baselines.pairs:RankedListSimpler",
        "selectively_contrastive_triplet": "baselines.tuplets:SelectivelyContrastiveTriplet",
        "soft_triple": "baselines.softmax:SoftTriple",
        "triplet_easy_positive": "baselines.mined:TripletEasyPositive",
        "triplet_semihard": "baselines.mined:TripletSemihard",
        "tuplet_margin": "baselines.tuplets:TupletMargin",
    }
)
#: Every loss: our own and those of other papers.
LOSSES = LossTable(
    {
        "cbml": "contrastive_bayesian:CBMLLoss",
        "cbml_authors": "contrastive_bayesian:CBMLAuthors",
        "cbml_const": "contrastive_bayesian:CBMLConst",
        "cbml_sqrt": "contrastive_bayesian:CBMLSqrt",
        "metric_variance": "additions:MetricVariance",
        **BASELINES.data,
    }
)
