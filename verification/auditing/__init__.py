"""The auditor's loop: what is drawn for us is done again, compared and reported."""
