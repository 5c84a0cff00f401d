"""All rerankers by name, as text: nothing is imported until one of them is used."""

import importlib
from dataclasses import dataclass

from cbml.errors import BadData
from cbml.outputs import Reranker

__all__ = ["RERANKERS", "RerankerEntry", "find_reranker"]


@dataclass(frozen=True, kw_only=True)
class RerankerEntry:
    """One row of the table.

    Args:
        location: "module:Class"; the class is built without arguments.
        title: one line for people.
        parts: what it reads of the outputs, as `Embedder.forward_outputs` names it.
        candidates: how many of the nearest it puts in order.
    """

    location: str
    title: str
    parts: tuple[str, ...]
    candidates: int = 100

    def load(self) -> Reranker:
        """Import and build it."""
        module, _, name = self.location.partition(":")
        made: Reranker = getattr(importlib.import_module(module), name)()
        return made


RERANKERS: dict[str, RerankerEntry] = {
    "diml": RerankerEntry(
        location="cbml.index.diml:DIML",
        title="cells of one image moved to those of the other at least cost",
        parts=("cells:4",),
    ),
}


def find_reranker(name: str) -> RerankerEntry:
    """The reranker of that name.

    Args:
        name: a key of RERANKERS, as a model names it.
    """
    if name not in RERANKERS:
        known = ", ".join(RERANKERS)
        raise BadData(f"the model asks for reranker {name!r}, which is none of {known}")
    return RERANKERS[name]
