"""Code of the user: where it is, and the part of a fingerprint that it makes."""
