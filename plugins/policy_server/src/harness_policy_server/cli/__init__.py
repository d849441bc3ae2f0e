"""Commands that fetch, show and write weights."""
