"""Maps of tiles as pictures and GeoJSON."""
