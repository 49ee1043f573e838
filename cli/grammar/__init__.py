"""Grammar of the command line: commands, options and their help texts."""
