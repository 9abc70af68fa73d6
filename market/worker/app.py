"""Entry point of worker and beat: `python -m celery -A market.worker.app worker`."""

import logging

from celery.signals import after_setup_logger

from contracts.settings import settings_of
from contracts.terms.printable import OneLine
from market.settings import Settings
from market.worker.tasks import make_app


@after_setup_logger.connect
def _log_in_lines(logger: logging.Logger, format: str, **_: object) -> None:
    for handler in logger.handlers:
        handler.setFormatter(OneLine(format))


app = make_app(settings_of(Settings))
