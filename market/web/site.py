"""Where do pages hang in the application? Beside `/v1`, with headers of their own."""

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from market.web.assets import PREFIX, STATIC
from market.web.headers import PageHeaders
from market.web.pages import audit, jobs, market, providers

ROUTERS = (market.router, jobs.router, providers.router, audit.router)


def add_pages(app: FastAPI) -> None:
    """Add all pages and what they load."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    app.mount(PREFIX, StaticFiles(directory=STATIC), "static")
    app.add_middleware(PageHeaders)
