"""Facts about a store that commands show, as plain values that JSON takes."""
