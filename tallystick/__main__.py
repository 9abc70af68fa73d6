"""`python -m tallystick` is `tallystick`."""

from tallystick.cli.main import app

if __name__ == "__main__":
    app()
