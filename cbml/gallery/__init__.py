"""A searchable folder of pictures: build, search, HTTP service, web page."""

from cbml.gallery.answers import Answer, Query, Result, Wish
from cbml.gallery.build import Built, build
from cbml.gallery.gallery import Gallery
from cbml.gallery.pictures import Listed, Picture, list_pictures
from cbml.gallery.site import Settings

__all__ = [
    "Answer",
    "Built",
    "Gallery",
    "Listed",
    "Picture",
    "Query",
    "Result",
    "Settings",
    "Wish",
    "build",
    "list_pictures",
]
