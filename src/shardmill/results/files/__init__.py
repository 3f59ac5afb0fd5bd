"""A result as files: which rows and columns are written (`chosen`), one module per format, and folders of files.

`kinds` has the table of formats; a module is imported when its format is written. A format of rows is a context
manager: it gets an open file and a schema, gives a function that writes a batch, and completes the file at its end.
"""
