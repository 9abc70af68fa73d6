"""Pages at `/` over the views of `/v1`: what people see of a market, and nothing that programs use.

A page calls the same functions that answer the API, so that its values are the API's values.
"""
