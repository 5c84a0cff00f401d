"""One thread, a cache of our own, and tiny images."""

from tests.fixtures import images, one_thread, own_cache

__all__ = ["images", "one_thread", "own_cache"]
