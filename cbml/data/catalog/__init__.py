"""The benchmarks that are known by name, one file each."""

__all__: list[str] = []
