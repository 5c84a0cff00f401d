"""Contrastive Bayesian metric learning: train image embeddings and search with them.

Names are imported on first use, so that `import cbml` and `cbml --help` stay quick: torch alone
takes seconds. `__init__.pyi` lists them, here and in every package.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
