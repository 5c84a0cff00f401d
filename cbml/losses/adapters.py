"""The adapter's name in the errors with which pytorch-metric-learning refuses a loss of ours.

Three wrappers of that library take only its own losses. Whoever meets their error should read what
to use instead, whichever of the two was imported first, and nobody should wait for a library that
is not used. So the wrappers are changed where they are imported already, and otherwise when
somebody imports them: Python asks the finders in `sys.meta_path` for each module it imports.
"""

import contextlib
import functools
import importlib
import importlib.abc
import itertools
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The module of each wrapper, and what to use instead of the wrapper or inside it.
_ADAPTERS = {
    "pytorch_metric_learning.losses.cross_batch_memory": (
        "CrossBatchMemory",
        "cbml.losses.interop.CrossBatchMemory(loss, ...)",
    ),
    "pytorch_metric_learning.losses.self_supervised_loss": (
        "SelfSupervisedLoss",
        "cbml.losses.interop.SelfSupervisedLoss(loss)",
    ),
    "pytorch_metric_learning.utils.distributed": (
        "DistributedLossWrapper",
        "DistributedLossWrapper(cbml.losses.interop.LibraryLoss(loss))",
    ),
}
_REFUSALS = ("not supported for", "must extend")


def name_adapters() -> None:
    """Let the wrappers, imported already or later, name our adapters where they refuse a loss."""
    sys.meta_path.insert(0, _Finder())
    for name in _ADAPTERS:
        if name in sys.modules:
            _name_adapter(importlib.import_module(name))  # waits for a thread that imports it


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the wrappers' modules as Python would, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as the other finders see it, with one more thing to do once it has run."""
        if fullname not in _ADAPTERS:
            return None
        others = itertools.dropwhile(lambda finder: finder is not self, tuple(sys.meta_path))
        for finder in itertools.islice(others, 1, None):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                with contextlib.suppress(AttributeError):  # a loader that cannot be changed
                    _name_adapter_after(spec.loader)
                return spec
        return None


def _name_adapter_after(loader: Any) -> None:
    """Change the wrapper as soon as the loader has run its module."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        _name_adapter(module)

    loader.exec_module = exec_module


def _name_adapter(module: ModuleType) -> None:
    """Add what to use to the error with which a wrapper refuses a loss of ours; all else stays."""
    # A loader may serve other modules too, and another version may lack the wrapper.
    class_name, adapter = _ADAPTERS.get(module.__name__, ("", ""))
    wrapper: Any = getattr(module, class_name, None)
    if wrapper is None:
        return
    library_init = wrapper.__init__

    @functools.wraps(library_init)
    def init(self: object, loss: object, *args: Any, **options: Any) -> None:
        try:
            library_init(self, loss, *args, **options)
        except Exception as error:
            ours = any(base.__module__.startswith("cbml.") for base in type(loss).__mro__)
            refused = any(words in str(error) for words in _REFUSALS)
            if ours and refused and adapter not in str(error):
                raise type(error)(f"{error}; use {adapter}") from None
            raise

    wrapper.__init__ = init
