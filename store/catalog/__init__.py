"""The catalog: a transactional ordered map of records, in LMDB or Redis, and the format of its records and exports."""
