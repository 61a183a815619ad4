"""FlatNCE inside other libraries: one module a library, imported only by its full name.

Each stands in for the library's own loss and changes nothing in it.
"""

__all__: list[str] = []
