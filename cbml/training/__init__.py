"""Model, method and batches -> trained model: the loop, checkpoints, many processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
