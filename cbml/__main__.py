"""`python -m cbml` is the program `cbml`."""

from cbml.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
