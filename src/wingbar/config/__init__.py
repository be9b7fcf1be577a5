"""Settings: sections as dataclasses, entries of methods, names, limits, files, recipes."""
