"""The JSON schema of job files as a file, for editors: written from the fields, never by hand.

`python -m tallystick.sdk.job_schema` writes it again; a test fails while it differs.
"""

import json
from pathlib import Path

from tallystick.sdk.job_file import job_schema

SCHEMA_PATH = Path(__file__).with_name("job.schema.json")


def schema_text() -> str:
    """The shipped file, as it has to be."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text())
