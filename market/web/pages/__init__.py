"""One module per noun; each route asks for the API's views and fills one template."""
