"""Is this the URL of something that we can ask over HTTP?"""

from urllib.parse import urlsplit

from contracts.terms.errors import Malformed

MAX_URL = 2048


def http_url(text: str, what: str) -> str:
    """`text` without a slash at its end.

    Args:
        text: What a person wrote, or another program sent.
        what: Of what it should be the URL, for the error.

    Raises:
        Malformed: another scheme, no host, no port number, too long.
    """
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        fits = fits and parts.port != 0 and len(text) <= MAX_URL and text.isprintable()
    except ValueError:
        fits = False
    if not fits or " " in text:
        raise Malformed(
            f"{text!r:.80} is no URL of {what}: it has to look like http://127.0.0.1:8420"
        )
    return text.rstrip("/")
