"""Does the wheel hold what it must, and does it work with the base dependencies alone?

The offline audit uses the same fixture, `installed`: tests/integration/audit.
"""

from tests.architecture.checkout import PACKAGES, ROOT, project, sources
from tests.installed import Installed

NOT_IN_BASE = ("torch", "numpy", "web3", "grpc", "fastapi", "sqlalchemy", "redis", "celery")

DATA_SUFFIXES = {".json", ".html", ".css", ".js", ".mako", ".ini", ".sql", ".svg", ".txt"}


def test_wheel__python_files__are_those_of_the_checkout(installed: Installed) -> None:
    in_wheel = {name for name in installed.files() if name.endswith(".py")}

    assert in_wheel == {str(source) for source in sources()}


def test_wheel__data__is_that_of_the_checkout(installed: Installed) -> None:
    folders = [ROOT / "contracts" / "abi", *(ROOT / package for package in PACKAGES[1:])]
    wanted = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in DATA_SUFFIXES
    }

    in_wheel = {name for name in installed.files() if name.split("/")[0] in PACKAGES}
    assert {name for name in in_wheel if not name.endswith(".py")} == wanted


def test_installed__heavy_packages__are_absent(installed: Installed) -> None:
    code = f"import importlib.util as u; print(*(n for n in {NOT_IN_BASE} if u.find_spec(n)))"

    done = installed.run("python", "-c", code)

    assert (done.returncode, done.stdout.split()) == (0, [])


def test_help__whole_command__imports_none_of_its_nouns(installed: Installed) -> None:
    """It is quick because of what it does not read, which is the same on every machine."""
    code = (
        "import sys; sys.argv = ['tallystick', '--help']\n"
        "from tallystick.cli.main import app\n"
        "try: app()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )

    done = installed.run("python", "-c", code)

    modules = set(done.stderr.split())
    assert done.returncode == 0 and "Usage" in done.stdout
    assert not {"pydantic", "httpx", "yaml", "asyncio"} & modules
    assert {name for name in modules if name.split(".")[0] in PACKAGES} == {
        *("tallystick", "tallystick.cli", "tallystick.cli.main", "tallystick.cli.complaint"),
        *("contracts", "contracts.terms", "contracts.terms.errors", "contracts.terms.printable"),
    }


def test_version__elsewhere__is_that_of_the_project(installed: Installed) -> None:
    done = installed.run("tallystick", "version")

    assert done.stdout.strip() == project()["project"]["version"]
