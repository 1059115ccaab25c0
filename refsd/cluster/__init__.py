"""The work of commands spread over a Dask cluster. Dask is imported only where a command is given --dask."""
