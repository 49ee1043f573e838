"""Store as a catalog of Spark SQL: Python objects behind Java's interfaces of catalogs, tables and scans."""
