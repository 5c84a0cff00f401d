"""Embeddings and labels -> scores: Recall@K, MAP@R, R-precision, NMI, AMI."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
