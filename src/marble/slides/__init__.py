"""Pixels: opening slides, finding tissue, laying the lattice. Nothing here imports torch.

reader      `Slide`: any supported file as one plane of level-0 pixels
preflight   what a TIFF claims, compared with the file before any decoder sees it
codestream  what a compressed tile claims to be
segments    a region put together from the tiles it touches
mpp         the pixel size: where it may come from, and when it is refused
tissue      `Tissue`: a low-resolution mask with exact coverage of any box
outlines    masks as polygons and back (GeoJSON)
pyramid     `Pyramid`: one nested lattice over all magnifications
preview     a picture of the three together
"""
