"""Files that are whole or absent, object stores, checksums and safe paths."""
