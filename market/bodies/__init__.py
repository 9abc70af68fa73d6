"""What crosses HTTP: the bodies of `/v1`, and what a client signs that is no message of a job.

Imports pydantic and contracts.terms only: the SDK, providers, hosts and coordinators use these
same classes (docs/architecture.md 1). Bytes are lower-case hex without 0x; money is a string of
base units; `signed` is the canonical encoding of a `Signed` message; moments are milliseconds since
the Unix epoch unless a message says otherwise. `signed` and `spec` come back byte for byte.
"""
