"""What can be wrong with what users hand us; the command line turns each kind into an exit code."""

__all__ = ["BadData", "DamagedFile", "FolderInUse", "MissingExtra"]


class BadData(ValueError):
    """Images, tables or folders that cannot be used as they are. Exit code 3."""


class FolderInUse(BadData):
    """A folder that another process is writing. Exit code 3."""


class DamagedFile(ValueError):
    """A saved file that is incomplete, altered or not what it claims to be. Exit code 4."""


class MissingExtra(ImportError):
    """An optional part that is not installed; the message says how to install it. Exit code 1."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package {package!r} is not installed: run  pip install 'cbml[{extra}]'"
        )
