"""The losses of other papers, under one call and one protocol with our own."""
