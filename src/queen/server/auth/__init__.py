"""Authentication: from a header to a caller.

options        what may be configured, and what is refused before the server starts
keys           the keys that sign JWTs, each bound to one algorithm; JWKS fetched and kept fresh
claims         the rules that make a JWT a caller
authenticator  one answer for a request: this caller, or 401
"""
