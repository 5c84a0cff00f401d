"""A config -> a run folder: the calls behind `cbml train`, `evaluate`, `analyze` and `demo`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
