"""What does somebody see whose page failed? The same problem that the API would answer."""

from starlette.requests import Request
from starlette.responses import Response

from market.bodies.base import Problem
from market.web.headers import HEADERS
from market.web.rendering import page

_TITLES = {404: "Not found", 400: "Not understood", 503: "Not available at the moment"}


def failure_page(request: Request, problem: Problem) -> Response:
    """A problem as a page, or as a piece of one where htmx asked for a piece."""
    is_piece = request.headers.get("HX-Request") == "true"
    answer = page(
        "failure_piece.html" if is_piece else "failure.html",
        problem.status,
        title=_TITLES.get(problem.status, "This did not work"),
        problem=problem,
        here="",
    )
    answer.headers.update(HEADERS)  # an error of ours is answered outside of all middleware
    if problem.status == 503:
        answer.headers["Retry-After"] = "1"
    return answer
