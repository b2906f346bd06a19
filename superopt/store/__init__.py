"""The store: certificates, measurements, runs and calibrations, kept between runs in one SQLite file.

Everything in it is a cache: keys are digests of content, machine and versions, values are JSON objects with a
checksum.  So any fault of the file is a miss, never an error.  A damaged file is moved aside, an unusable place
(read-only, full, newer schema) is replaced by memory, and both report that once through `StoreWarning`.

Writers take `BEGIN IMMEDIATE` under write-ahead logging with a 30 s busy time-out; deferred transactions fail at once
when two readers both turn into writers, which no time-out cures.
"""

from superopt.store.sqlite import SCHEMA_VERSION, TABLES, Store, StoreWarning, content_key, default_path

__all__ = ["SCHEMA_VERSION", "TABLES", "Store", "StoreWarning", "content_key", "default_path"]
