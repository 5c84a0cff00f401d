"""Embeddings and labels in, one number out: CBML, the variance constraint, and the baselines."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
