"""Entry point of worker and beat: `python -m celery -A market.adapters.celery_app worker`."""

from market.adapters.celery_tasks import make_app
from market.settings import read_settings

app = make_app(read_settings())
