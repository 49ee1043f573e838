"""Page that shows a store: the document of its state, a bounded HTTP port, and the static files of the browser."""
