"""Facts about a store that commands and the page show, as plain values that JSON takes."""
