"""Tools to test an own catalog, an own file system, or a program on epochlog, with any test runner.

Nothing of the library imports this package, and this package imports no test runner. docs/testing.md has examples.
"""
