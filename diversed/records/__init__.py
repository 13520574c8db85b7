"""Records: what every evaluation writes, and the only thing figures and tables read."""
