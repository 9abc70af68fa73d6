"""The application: routes under /v1, every error a problem; pages for people beside them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI

from contracts.terms.amounts import BaseUnits
from market.api import problems
from market.api.conditional import Conditional
from market.api.context import Api
from market.api.limits import Limits
from market.api.routes import events, jobs, market, providers, tracing
from market.api.routing import ABOUT, DocumentedApp
from market.bodies.base import API_PREFIX
from market.bootstrap import assemble, load_host_token
from market.domain.limits import BlobBounds, Rate
from market.service.store_blob import DEAD_SECONDS
from market.settings import Settings
from market.web.site import add_pages

VERSION = "0.1.0"
ROUTERS = (
    *market.ROUTERS,
    *providers.ROUTERS,
    *jobs.ROUTERS,
    *tracing.ROUTERS,
    events.router,
)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def make_app(api: Api | None = None, lifespan: Lifespan | None = None) -> FastAPI:
    """The application over `api`, or over what `lifespan` puts into its state."""
    app = DocumentedApp(
        title="Tallystick market",
        version=VERSION,
        summary="A marketplace for training work that has been checked",
        description=ABOUT,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    problems.install(app)
    app.add_middleware(Conditional)
    app.add_middleware(Limits)  # added last, so it is asked first
    for router in ROUTERS:
        app.include_router(router, prefix=API_PREFIX)
    add_pages(app)
    if api is not None:
        app.state.api = api
    return app


def app_of(settings: Settings) -> FastAPI:
    """The application over the services that the settings name."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        assembled = await assemble(settings, writes=False)
        try:
            await assembled.market.blobs.prepare(older_than_seconds=DEAD_SECONDS)
            app.state.api = Api(
                market=assembled.market,
                host_token=load_host_token(settings),
                version=VERSION,
                faucet_gas=settings.faucet_gas,
                faucet_tokens=settings.faucet_tokens,
                faucet_grants=settings.faucet_grants,
                confirmations=settings.confirmations,
                site=settings.site(),
                rate=Rate(settings.rate_per_second, settings.rate_burst),
                blob_bounds=BlobBounds(
                    anybody=settings.blob_quota,
                    known=settings.blob_quota_known,
                    known_from=BaseUnits(settings.blob_known_from),
                    reserve=settings.blob_reserve,
                ),
            )
            yield
            await app.state.api.close()
        finally:
            await assembled.close()

    return make_app(lifespan=lifespan)
