"""A searchable folder of images: build, search, HTTP service, web page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
