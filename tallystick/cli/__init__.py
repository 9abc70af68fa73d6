"""The command line; a noun's module is imported only when that noun is used."""
