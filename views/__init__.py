"""Views in SQL: the derivation of a view's incremental refresh from its query, and the refresh itself."""
