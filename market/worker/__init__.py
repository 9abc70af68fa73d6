"""The Celery worker and beat: an entry point beside the API."""
