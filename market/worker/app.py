"""Entry point of worker and beat: `python -m celery -A market.worker.app worker`."""

from contracts.settings import settings_of
from market.settings import Settings
from market.worker.tasks import make_app

app = make_app(settings_of(Settings))
