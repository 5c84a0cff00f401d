"""The sets we know by name, one file each, and the user's own folders and tables."""

__all__: list[str] = []
