"""Records of tables, jobs, versions and consumers as the catalog keeps them, and pure edits of them."""
