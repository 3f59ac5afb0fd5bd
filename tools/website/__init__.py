"""The site: the Markdown of this repository as pages that can be searched, also without a network.

python -m tools.website            # makes build/docs/site
python -m tools.website --serve    # the same on http://localhost:8000, built anew when a page changes
"""
