"""Tools to test a custom catalog, a custom file system, or a program on epochlog, with any test runner.

The library imports nothing from this package, and this package imports no test runner. docs/testing.md has examples.
"""
