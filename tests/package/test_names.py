"""The public names exist, say what they take, and nothing else is public by accident."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from types import ModuleType

import pytest
from torch import nn

import cbml
from tests.package.test_imports import FOUNDATION

# The front doors: what they export is public, everything behind them is not.
MODULES = ["cbml"] + [
    module.name
    for module in pkgutil.iter_modules(cbml.__path__, prefix="cbml.")
    if module.ispkg or module.name.split(".")[1] in FOUNDATION
]
# What users import from: inner modules need a first line, not a list of arguments.
FRONT_DOORS = [name for name in MODULES if name.count(".") < 2 and name != "cbml.cli"]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_the_list_of_public_names(name: str) -> None:
    module = importlib.import_module(name)
    exported = module.__all__
    assert len(set(exported)) == len(exported)
    for public in exported:
        assert getattr(module, public) is not None
    for public, thing in vars(module).items():
        defined_here = getattr(thing, "__module__", None) == name
        if defined_here and not public.startswith("_") and inspect.isroutine(thing):
            assert public in exported, f"{name}.{public}: in __all__, or with a leading underscore"


def test_the_front_door_opens_to_every_name() -> None:
    assert sorted(cbml.__all__) == cbml.__all__
    assert set(cbml.__all__) <= set(dir(cbml))
    with pytest.raises(AttributeError, match="CBMLLos"):
        cbml.CBMLLos  # noqa: B018


def test_packages_open_without_an_import_of_their_own() -> None:
    # As the documents spell them; a process of its own, because here all are imported.
    program = "import cbml\nprint(cbml.data.read_image, cbml.runs.examine, cbml.gallery.build)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def public_callables() -> list[tuple[str, object]]:
    """Functions, classes and methods that users can reach, once each."""
    found: dict[str, object] = {}
    for name in FRONT_DOORS:
        module = importlib.import_module(name)
        for public in module.__all__:
            add_callables(found, module, public)
    return sorted(found.items())


def add_callables(found: dict[str, object], module: ModuleType, public: str) -> None:
    thing = getattr(module, public)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    if not thing.__module__.startswith("cbml"):
        return
    found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    if inspect.isclass(thing):
        for name, member in vars(thing).items():
            function = getattr(member, "__func__", member)
            if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
                found[f"{thing.__module__}.{function.__qualname__}"] = function


def is_protocol(thing: type) -> bool:
    """Whether it only describes what others must offer; such a class is never called itself."""
    return bool(getattr(thing, "_is_protocol", False))


def overridden(thing: object) -> bool:
    """Whether a method of one of the package's base classes says what the arguments are."""
    if not inspect.isfunction(thing) or "." not in thing.__qualname__:
        return False
    owner = getattr(importlib.import_module(thing.__module__), thing.__qualname__.split(".")[0])
    return any(
        thing.__name__ in vars(base) and base.__module__.startswith("cbml")
        for base in owner.__mro__[1:]
    )


def documented_arguments(docstring: str) -> list[str]:
    """The names under `Args:`, in their order."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if section is None:
        return []
    return re.findall(r"^    (\w+):", section.group(1), re.MULTILINE)


CALLABLES = public_callables()


@pytest.mark.parametrize(("name", "thing"), CALLABLES, ids=[name for name, _ in CALLABLES])
def test_docstring_arguments_equal_the_signature(name: str, thing: object) -> None:
    docstring = inspect.getdoc(thing)
    assert docstring, f"{name} has no docstring"
    if inspect.isclass(thing) and (issubclass(thing, BaseException) or is_protocol(thing)):
        return
    if getattr(thing, "__init__", None) is nn.Module.__init__:
        return  # takes nothing, but shows (*args, **kwargs)
    expected = [
        name
        for name in inspect.signature(thing).parameters  # type: ignore[arg-type]
        if name not in {"self", "cls"}
    ]
    documented = documented_arguments(docstring)
    if dataclasses.is_dataclass(thing):  # what a base says of its fields is not repeated
        bases = [base.__doc__ for base in reversed(thing.__mro__) if dataclasses.is_dataclass(base)]
        documented = [
            name for text in bases for name in documented_arguments(inspect.cleandoc(text))
        ]
    if overridden(thing):  # what its base says holds; entries are for what is particular to it
        assert documented == [name for name in expected if name in documented]
    else:
        assert documented == expected
