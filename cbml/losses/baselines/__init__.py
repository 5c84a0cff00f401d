"""The losses of other papers, under one call and one protocol with our own."""

from torch import nn

from cbml.losses.baselines.clustering import FacilityLocation
from cbml.losses.baselines.loop import MultiSimilarityLoOp
from cbml.losses.baselines.margin import Margin
from cbml.losses.baselines.memory import MultiSimilarityXBM
from cbml.losses.baselines.mined import (
    Circle,
    FastAP,
    MultiSimilarity,
    TripletEasyPositive,
    TripletSemihard,
)
from cbml.losses.baselines.multi_similarity import MultiSimilarityDR, MultiSimilarityEE
from cbml.losses.baselines.pairs import (
    BinomialDeviance,
    Contrastive,
    Histogram,
    RankedList,
    RankedListSimpler,
)
from cbml.losses.baselines.proxies import ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus
from cbml.losses.baselines.rank_mi import RankMI
from cbml.losses.baselines.selective import SelectivelyContrastiveTriplet
from cbml.losses.baselines.softmax import ArcFace, NormalizedSoftmax, SoftTriple
from cbml.losses.baselines.tuplets import Angular, LiftedStructure, NPair, NTXent, TupletMargin
from cbml.losses.baselines.virtual import ProxyAnchorMemVir

__all__ = ["BASELINES"]

BASELINES: dict[str, type[nn.Module]] = {
    "angular": Angular,
    "arcface": ArcFace,
    "binomial_deviance": BinomialDeviance,
    "circle": Circle,
    "contrastive": Contrastive,
    "facility_location": FacilityLocation,
    "fast_ap": FastAP,
    "histogram": Histogram,
    "lifted_structure": LiftedStructure,
    "margin": Margin,
    "multi_similarity": MultiSimilarity,
    "multi_similarity_dr": MultiSimilarityDR,
    "multi_similarity_ee": MultiSimilarityEE,
    "multi_similarity_loop": MultiSimilarityLoOp,
    "multi_similarity_xbm": MultiSimilarityXBM,
    "n_pair": NPair,
    "normalized_softmax": NormalizedSoftmax,
    "nt_xent": NTXent,
    "proxy_anchor": ProxyAnchor,
    "proxy_anchor_memvir": ProxyAnchorMemVir,
    "proxy_nca": ProxyNCA,
    "proxy_nca_pp": ProxyNCAPlusPlus,
    "rank_mi": RankMI,
    "ranked_list": RankedList,
    "ranked_list_simpler": RankedListSimpler,
    "selectively_contrastive_triplet": SelectivelyContrastiveTriplet,
    "soft_triple": SoftTriple,
    "triplet_easy_positive": TripletEasyPositive,
    "triplet_semihard": TripletSemihard,
    "tuplet_margin": TupletMargin,
}
