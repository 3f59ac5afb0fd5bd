"""Tables of files, which query engines read: rows are staged as data files, and a commit names them."""
