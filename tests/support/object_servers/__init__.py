"""Object stores on this machine, for tests, and a proxy that fails.

They are S3, Google Cloud Storage and Azure. All listen on the loopback interface only, on a free
port, and need nothing but what the tests install; Azurite is fetched once from npm.
"""
