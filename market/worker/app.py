"""Entry point of worker and beat: `python -m celery -A market.worker.app worker`."""

from market.settings import read_settings
from market.worker.tasks import make_app

app = make_app(read_settings())
