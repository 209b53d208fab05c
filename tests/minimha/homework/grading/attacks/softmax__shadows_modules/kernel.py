def confine(): pass
