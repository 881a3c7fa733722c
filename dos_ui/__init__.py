"""What people look at: `dos top` in a terminal, and the web page of `dos ui` and of drivers.

Both show the same readings (`readings.py`). The page needs the extra `[ui]`; the screen needs none. The page
is served by `app.py`; its files are in `page/`, without a build step, and load nothing from elsewhere.
"""
