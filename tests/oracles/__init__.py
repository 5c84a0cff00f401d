"""Each formula again, literally, in plain loops; imports neither torch nor cbml."""
