"""Makes and verifies audit files; verification works offline from anchored facts."""
