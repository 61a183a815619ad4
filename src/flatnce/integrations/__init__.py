"""FlatNCE inside other libraries: one module per library, imported by its full name."""
