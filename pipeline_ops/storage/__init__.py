"""The store: everything that the chain keeps, below one root, in a folder or in a bucket.

A `StorePath` is one place in a store. `LocalPath` is one in a folder: renames, links and `flock`.
`ObjectPath` is one in a bucket of S3, Google Cloud Storage or Azure: conditional writes. Both kinds
keep the same promises:

| promise             | folder                       | bucket                                    |
|---------------------|------------------------------|-------------------------------------------|
| whole or absent     | temporary name, fsync,       | one put, or a multipart upload, which is  |
|                     | rename                       | completed last                            |
| create once         | hard link, or rename without | put with `If-None-Match: *` or the other  |
|                     | replacement                  | stores' equivalent                        |
| read your own write | the file system              | strong consistency of all three stores    |
| exclusive lease     | `flock`; the kernel releases | numbered records, each created once; a    |
| (`system/lease.py`) | it with its holder           | holder without a sign of life loses it    |
| fencing token       | not needed: a paused holder  | the record's number: a commit takes the   |
|                     | keeps the lock               | next one, so a late commit is refused     |
| checksums           | the files of an artifact are compared with its manifest when a job   |
|                     | fetches them                                                         |
| nothing is lost or  | leftovers have names of their own; the next writer or `trainyard gc` |
| doubled by a kill   | removes them                                                         |

Besides, this package has checksums, safe paths, and files that are whole or absent.
"""
