"""Catalog: a transactional ordered map of records, in LMDB or Redis, with the formats of its records and exports."""
