"""Versions of a job's code: content-addressed snapshots of a source tree (ByteRobust §6.1, docs/adr on code versions).

A version is named by the hash of its manifest, and a manifest names each file by the hash of its content: the
name alone suffices to verify a version, whatever its source.
"""
