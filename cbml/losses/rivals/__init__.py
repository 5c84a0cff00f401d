"""The losses of other papers, under one call and one protocol with our own."""

from torch import nn

from cbml.losses.rivals.margin import Margin
from cbml.losses.rivals.memory import MultiSimilarityXBM
from cbml.losses.rivals.mined import (
    Circle,
    FastAP,
    MultiSimilarity,
    TripletEasyPositive,
    TripletSemihard,
)
from cbml.losses.rivals.pairs import BinomialDeviance, Contrastive, Histogram, RankedList
from cbml.losses.rivals.proxies import ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus
from cbml.losses.rivals.softmax import ArcFace, NormalizedSoftmax, SoftTriple
from cbml.losses.rivals.tuplets import Angular, LiftedStructure, NPair, NTXent, TupletMargin

__all__ = ["RIVALS"]

RIVALS: dict[str, type[nn.Module]] = {
    "angular": Angular,
    "arcface": ArcFace,
    "binomial_deviance": BinomialDeviance,
    "circle": Circle,
    "contrastive": Contrastive,
    "fast_ap": FastAP,
    "histogram": Histogram,
    "lifted_structure": LiftedStructure,
    "margin": Margin,
    "multi_similarity": MultiSimilarity,
    "multi_similarity_xbm": MultiSimilarityXBM,
    "n_pair": NPair,
    "normalized_softmax": NormalizedSoftmax,
    "nt_xent": NTXent,
    "proxy_anchor": ProxyAnchor,
    "proxy_nca": ProxyNCA,
    "proxy_nca_pp": ProxyNCAPlusPlus,
    "ranked_list": RankedList,
    "soft_triple": SoftTriple,
    "triplet_easy_positive": TripletEasyPositive,
    "triplet_semihard": TripletSemihard,
    "tuplet_margin": TupletMargin,
}
